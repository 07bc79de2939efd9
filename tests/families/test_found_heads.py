"""Weights decide whether there is a head, and what is wrong with one is told in a line."""

import re
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.errors import CheckpointError
from mtplx.loading.describe import describe
from mtplx.loading.describe_folder import folder_memory
from mtplx.loading.native_folder import folder_model
from tests.families.checkpoints import (
    CONVERTED,
    PUBLISHED,
    Tensors,
    converted,
    parted,
    write,
)
from tests.families.layouts import (
    MAIN,
    SHARDS,
    SIDE,
    Original,
    assert_says_the_same,
)
from tests.tiny_folder import write_folder


@pytest.mark.parametrize("promised", [None, 0, 1, 3])
def test_weights_decide_whether_there_is_a_head(
    promised: int | None, dense: Original, tmp_path: Path
) -> None:
    """A head that is there is used, whatever config.json says; one that is not is told of."""
    config = {**dense.config, "mtp_num_hidden_layers": promised}
    config = {key: value for key, value in config.items() if value is not None}
    assert_says_the_same(write(tmp_path / "with", config, {MAIN: dense.tensors}), dense.told)
    note = folder_model(tmp_path / "with").head.note  # type: ignore[union-attr]
    assert (note is None) == (promised in (None, 1))
    model = folder_model(write(tmp_path / "without", config, {MAIN: parted(dense.tensors)[0]}))
    assert model.head is None
    assert model.no_head_reason is not None
    assert "no tensor" in model.no_head_reason
    assert "mtp.*" in model.no_head_reason
    assert ("promises" in model.no_head_reason) == bool(promised)
    assert "\n" not in model.no_head_reason


def test_a_shard_with_the_head_that_is_not_there_costs_the_drafting(
    dense: Original, tmp_path: Path
) -> None:
    """The trunk decodes, and the file is named."""
    trunk, head = parted(dense.tensors)
    write(tmp_path, dense.config, dict(zip(SHARDS, (trunk, head), strict=True)), indexed=SHARDS)
    (tmp_path / SHARDS[1]).unlink()
    model = folder_model(tmp_path)
    assert model.head is None
    assert model.no_head_reason is not None
    assert SHARDS[1] in model.no_head_reason


def test_a_head_in_a_damaged_file_costs_the_drafting(dense: Original, tmp_path: Path) -> None:
    """A file beside the model's own that cannot be read is named, and the trunk decodes."""
    trunk, head = parted(dense.tensors)
    side = write(tmp_path, dense.config, {MAIN: trunk, SIDE: head}) / SIDE
    side.write_bytes(side.read_bytes()[:-1000])
    model = folder_model(tmp_path)
    assert model.head is None
    assert model.no_head_reason is not None
    assert str(side) in model.no_head_reason


def test_a_shard_with_the_trunk_that_is_not_there_is_an_error(
    dense: Original, tmp_path: Path
) -> None:
    """It names the file and a tensor of it."""
    trunk, head = parted(dense.tensors)
    write(tmp_path, dense.config, dict(zip(SHARDS, (head, trunk), strict=True)), indexed=SHARDS)
    (tmp_path / SHARDS[1]).unlink()
    with pytest.raises(CheckpointError, match=rf"{SHARDS[1]} is not there.*model\."):
        folder_model(tmp_path)


def test_files_of_two_checkpoints_are_no_checkpoint(dense: Original, tmp_path: Path) -> None:
    """A converted trunk and published shards beside it are told apart by the prefixes."""
    trunk, head = parted(dense.tensors)
    files = {SHARDS[0]: converted(trunk), SHARDS[1]: trunk | head}
    with pytest.raises(CheckpointError, match="under two names"):
        folder_model(write(tmp_path, dense.config, files))


def without(head: Tensors) -> Tensors:
    return {name: array for name, array in head.items() if name != "mtp.norm.weight"}


def without_layers(head: Tensors) -> Tensors:
    return {name: array for name, array in head.items() if ".layers." not in name}


def left_over(head: Tensors) -> Tensors:
    return head | {"mtp.nobody.weight": mx.ones(4)}


def left_over_in_the_layer(head: Tensors) -> Tensors:
    return head | {"mtp.layers.0.self_attn.nobody.weight": mx.ones(4)}


def of_another_width(head: Tensors) -> Tensors:
    return head | {"mtp.fc.weight": head["mtp.fc.weight"][:, 1:]}


def not_finite(head: Tensors) -> Tensors:
    return head | {"mtp.layers.0.mlp.up_proj.weight": mx.full((96, 64), mx.nan)}


def packed_without_a_scale(head: Tensors) -> Tensors:
    return head | {"mtp.fc.weight": mx.zeros(head["mtp.fc.weight"].shape, mx.uint8)}


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (without, "output_norm.weight is missing"),
        (without_layers, "no layer"),
        (left_over, r"mtp\.nobody\.weight"),
        (left_over_in_the_layer, "nobody.weight is left over"),
        (of_another_width, r"projection\.weight is \[64, 127\]"),
        (packed_without_a_scale, r"mtp\.fc\.weight_scale is not there"),
        (not_finite, r"up_proj\.weight holds numbers that are not finite"),
    ],
)
def test_a_head_that_does_not_fit_is_named_and_the_trunk_decodes(
    spoil: Callable[[Tensors], Tensors], named: str, dense: Original, tmp_path: Path
) -> None:
    """Missing, left over, of another shape, not finite: a reason in one line, and no drafting.

    What headers tell of it, before anything is loaded, is the same, and no error either.
    """
    trunk, head = parted(dense.tensors)
    folder = write(tmp_path, dense.config, {MAIN: trunk | spoil(head)})
    model = folder_model(folder)
    assert model.head is None
    assert model.no_head_reason is not None
    assert "\n" not in model.no_head_reason
    assert re.search(named, model.no_head_reason), model.no_head_reason
    assert folder_memory(folder).weights_bytes > 0
    if spoil is not not_finite:  # which takes reading the numbers
        assert describe(folder).no_head_reason == model.no_head_reason
        assert describe(folder).native_head is None


@pytest.mark.parametrize(("trunk_layout", "known"), [("published", True), ("converted", False)])
def test_a_file_that_does_not_tell_how_norms_are_stored(
    trunk_layout: str, known: bool, dense: Original, tmp_path: Path
) -> None:
    """Beside a published trunk it is published; beside a converted one nothing tells, and guessing
    from the numbers would halve acceptance in silence, so it is refused."""
    trunk, head = parted(dense.tensors)
    trunk = converted(trunk) if trunk_layout == "converted" else trunk
    folder = write(tmp_path, dense.config, {MAIN: trunk, SIDE: head}, {MAIN: CONVERTED, SIDE: {}})
    if known:
        assert_says_the_same(folder, dense.told)
        return
    model = folder_model(folder)
    assert model.head is None
    assert model.no_head_reason is not None
    assert str(folder / SIDE) in model.no_head_reason
    assert "1 + w" in model.no_head_reason


def test_a_head_that_is_half_converted_is_refused(dense: Original, tmp_path: Path) -> None:
    """Parts of it in files of which one was converted and the other was not."""
    trunk, head = parted(dense.tensors)
    layers = {name: array for name, array in head.items() if ".layers." in name}
    rest = {name: array for name, array in converted(head).items() if ".layers." not in name}
    files = {MAIN: trunk, "a.safetensors": layers, "b.safetensors": rest}
    labels = {MAIN: PUBLISHED, "a.safetensors": PUBLISHED, "b.safetensors": CONVERTED}
    model = folder_model(write(tmp_path, dense.config, files, labels))
    assert model.head is None
    assert model.no_head_reason is not None
    assert "a.safetensors" in model.no_head_reason
    assert "b.safetensors" in model.no_head_reason


def test_an_architecture_without_a_known_head_says_so(tmp_path: Path) -> None:
    """In one line that names it."""
    model = folder_model(write_folder(tmp_path))
    assert model.head is None
    assert model.no_head_reason is not None
    assert "'llama'" in model.no_head_reason
