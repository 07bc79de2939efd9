"""How a checkpoint is stored does not matter: published or converted, in one file or in several."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.loading import native_head_files
from mtplx.loading.native_folder import folder_model
from tests.families.checkpoints import (
    CONVERTED,
    Tensors,
    converted,
    fused,
    multimodal,
    parted,
    renamed,
    write,
)
from tests.families.layouts import (
    LAYOUTS,
    MAIN,
    SIDE,
    Original,
    assert_says_the_same,
    stored,
    told,
)
from tests.tiny import close

WAYS = [
    (place, trunk, head)
    for place, trunk, head in product(("embedded", "sidecar", "sharded"), LAYOUTS, LAYOUTS)
    if place != "embedded" or trunk == head  # of another file nothing could be known
]


@pytest.mark.parametrize("kind", ["dense", "experts"])
@pytest.mark.parametrize(("place", "trunk_layout", "head_layout"), WAYS)
def test_a_checkpoint_is_the_same_however_it_is_stored(
    kind: str,
    place: str,
    trunk_layout: str,
    head_layout: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Published or converted, head and trunk alike or not, in one file or in several: the same
    logits, the same text and the same acceptance, also when it is loaded a second time."""
    made: Original = request.getfixturevalue(kind)
    folder = stored(tmp_path, made, place, trunk_layout, head_layout)
    assert_says_the_same(folder, made.told)
    assert_says_the_same(folder, made.told)


@pytest.mark.parametrize("place", ["embedded", "sidecar"])
@pytest.mark.parametrize("head_layout", LAYOUTS)
def test_qwen3_next_is_the_same_however_it_is_stored(
    head_layout: str, place: str, previous: Original, tmp_path: Path
) -> None:
    """Converted, where mlx-lm itself would hand the head on to the trunk, or with the published
    head beside a converted trunk."""
    change, label = LAYOUTS[head_layout]
    trunk, head = parted(previous.tensors)
    trunk, head = converted(trunk), change(head)
    files = {MAIN: trunk | head} if place == "embedded" else {MAIN: trunk, SIDE: head}
    files = {
        file: renamed(tensors, lambda name: name.removeprefix("language_model."))
        for file, tensors in files.items()
    }
    if place == "embedded" and head_layout == "published":
        model = folder_model(write(tmp_path, previous.config, files, CONVERTED))
        assert model.no_head_reason is not None
        assert "one was converted" in model.no_head_reason
        return
    labels = {MAIN: CONVERTED, SIDE: label}
    assert_says_the_same(write(tmp_path, previous.config, files, labels), previous.told)


@pytest.mark.parametrize(("layout", "mistaken"), [("published", False), ("converted", True)])
def test_a_shift_left_out_or_done_twice_would_be_seen(
    layout: str,
    mistaken: bool,
    dense: Original,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text stays the trunk's, but the head's logits are others."""
    monkeypatch.setattr(native_head_files, "is_zero_centred", lambda *_: mistaken)
    found = told(folder_model(stored(tmp_path, dense, "sidecar", layout, layout)))
    assert mx.array_equal(found.trunk, dense.told.trunk)
    assert found.text == dense.told.text
    assert mx.max(mx.abs(found.head - dense.told.head)).item() > 0.1  # type: ignore[operator]


@pytest.mark.parametrize("parts", ["trunk", "head", "both"])
def test_experts_may_be_fused(parts: str, experts: Original, tmp_path: Path) -> None:
    """One array for all experts' gates and ups, in the trunk, in the head or in both."""
    trunk, head = parted(experts.tensors)
    trunk = trunk if parts == "head" else fused(trunk)
    head = head if parts == "trunk" else fused(head)
    assert_says_the_same(write(tmp_path, experts.config, {MAIN: trunk | head}), experts.told)


@pytest.mark.parametrize(
    "change",
    [
        lambda name: f"language_model.{name}",
        lambda name: f"model.{name}" if name.startswith("mtp.") else name,
    ],
    ids=["language_model.mtp.", "model.mtp."],
)
def test_prefixes_do_not_matter(
    change: Callable[[str], str], dense: Original, tmp_path: Path
) -> None:
    """The same tensors under the names that other programs write."""
    folder = write(tmp_path, dense.config, {MAIN: renamed(dense.tensors, change)})
    assert_says_the_same(folder, dense.told)


def packed(tensors: Tensors, *, bits: int, group_size: int) -> tuple[Tensors, Tensors]:
    """The matrices of a head in MLX's groups, and what these stand for."""
    codes, dense = dict(tensors), dict(tensors)
    for name, array in tensors.items():
        if array.ndim == 2 and array.shape[-1] % group_size == 0 and "mtp.fc" not in name:
            base = name.removesuffix("weight")
            words, scales, biases = mx.quantize(array, group_size, bits)
            codes |= {name: words, f"{base}scales": scales, f"{base}biases": biases}
            dense[name] = mx.dequantize(words, scales, biases, group_size, bits)
    return codes, dense


@pytest.mark.parametrize(("bits", "group_size"), [(3, 32), (4, 64), (6, 32), (8, 64)])
def test_a_head_may_be_packed_in_another_manner_than_its_trunk(
    bits: int, group_size: int, dense: Original, tmp_path: Path
) -> None:
    """Its projection as it was, its layers in groups, beside a trunk that is not packed."""
    trunk, head = parted(converted(dense.tensors))
    words, numbers = packed(head, bits=bits, group_size=group_size)
    folders = [
        write(tmp_path / name, dense.config, {MAIN: trunk | stored_head}, CONVERTED)
        for name, stored_head in (("packed", words), ("dense", numbers))
    ]
    found, expected = (told(folder_model(folder)) for folder in folders)
    assert mx.array_equal(found.trunk, expected.trunk)
    assert close(found.head, expected.head)
    assert not close(found.head, dense.told.head)


@pytest.mark.parametrize("prefix", ["", "model.language_model.", "language_model."])
def test_the_text_part_of_a_model_that_sees(prefix: str, dense: Original, tmp_path: Path) -> None:
    """Its tensors under `model.language_model.`, its sizes in `text_config`, its eyes left out."""
    tensors, config = multimodal(dense.tensors, dense.config)
    tensors = renamed(tensors, lambda name: prefix + name if name.startswith("mtp.") else name)
    assert_says_the_same(write(tmp_path, config, {MAIN: tensors}), dense.told)


def test_the_text_part_of_a_model_of_experts_that_sees(experts: Original, tmp_path: Path) -> None:
    """Prefixes and fused experts together, as the larger models are published."""
    tensors, config = multimodal(fused(experts.tensors), experts.config)
    assert_says_the_same(write(tmp_path, config, {MAIN: tensors}), experts.told)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_the_output_layer_is_the_one_that_is_there(
    flag: bool, own: bool, dense: Original, tmp_path: Path
) -> None:
    """Flag and tensor may contradict each other: with an lm_head it is used, without one the
    embedding is, and the head's logits are made by the same."""
    config = {**dense.config, "tie_word_embeddings": flag}
    table = dense.tensors["model.embed_tokens.weight"]
    tensors = {
        name: array for name, array in dense.tensors.items() if own or name != "lm_head.weight"
    }
    found = told(folder_model(write(tmp_path / "a", config, {MAIN: tensors})))
    if own:
        assert mx.array_equal(found.trunk, dense.told.trunk)
        assert mx.array_equal(found.head, dense.told.head)
        return
    tied = dense.tensors | {"lm_head.weight": table}
    again = told(folder_model(write(tmp_path / "c", config, {MAIN: tied})))
    assert mx.array_equal(found.trunk, again.trunk)
    expected = told(folder_model(write(tmp_path / "b", dense.config, {MAIN: tied})))
    assert mx.array_equal(found.trunk, expected.trunk)
    assert mx.array_equal(found.head, expected.head)
