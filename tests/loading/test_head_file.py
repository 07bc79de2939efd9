"""MTP heads on disk: whole and for this trunk, or an error that says what is wrong."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import FileAccessError, HeadError
from mtplx.loading.head_file import FORMAT, head_shapes, read_head, write_head
from mtplx.models.head import BLOCK_FIELDS, HeadWeights
from tests.tiny import DIMS, tiny_head

Tensors = dict[str, mx.array]
SHORTLIST = mx.array([3, 7, 8, 40, 63], dtype=mx.int32)


def parameters_of(head: HeadWeights) -> Tensors:
    """As training has them."""
    parameters = {
        "enorm": head.enorm,
        "hnorm": head.hnorm,
        "eh_proj": head.eh_proj.arrays()[0],
        "norm": head.norm,
    }
    for i, block in enumerate(head.blocks):
        for name in BLOCK_FIELDS:
            value = getattr(block, name)
            array = value if isinstance(value, mx.array) else value.arrays()[0]
            parameters[f"blocks.{i}.{name}"] = array
    return parameters


def save(path: Path, head: HeadWeights) -> Path:
    write_head(path, parameters_of(head), DIMS, SHORTLIST, {"trunk": "abc", "steps": "7"})
    return path


def spoiled(path: Path, spoil: Callable[[Tensors], object], **metadata: str) -> Path:
    """The file of a tiny head after something was done to its tensors."""
    tensors = mx.load(str(save(path, tiny_head())))
    assert isinstance(tensors, dict)
    spoil(tensors)
    mx.save_safetensors(str(path), tensors, {"format": FORMAT, "trunk": "abc"} | metadata)
    return path


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """What the system allows a file to hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def replaced(name: str, array: mx.array) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: array})


@pytest.mark.parametrize("num_blocks", [1, 2, 11])
def test_a_head_comes_back_as_it_was_trained(num_blocks: int, tmp_path: Path) -> None:
    """In bfloat16's precision, each tensor in its place, with shortlist and trunk."""
    head = tiny_head(num_blocks=num_blocks)
    path = save(tmp_path / "head.safetensors", head)
    read = read_head(path, DIMS)
    assert len(read.weights.blocks) == num_blocks
    for stored, array in zip(read.weights.arrays(), head.arrays(), strict=True):
        assert stored.dtype == mx.float32
        assert mx.array_equal(stored, array.astype(mx.bfloat16).astype(mx.float32))
    assert mx.array_equal(read.shortlist, SHORTLIST)
    assert read.shortlist.dtype == mx.int32
    assert (read.trunk, read.path, read.num_bytes) == ("abc", path, path.stat().st_size)


def test_names_are_those_of_a_deepseek_checkpoint(tmp_path: Path) -> None:
    """Under mtp., q, k, v, gate and up apart; nothing but them and the shortlist."""
    tensors = mx.load(str(save(tmp_path / "head.safetensors", tiny_head(num_blocks=2))))
    assert isinstance(tensors, dict)
    assert tensors.keys() == head_shapes(DIMS, 2).keys() | {"mtp.shortlist"}
    assert "mtp.layers.1.self_attn.k_proj.weight" in tensors
    for name, shape in head_shapes(DIMS, 2).items():
        assert tensors[name].shape == shape


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """What was there before stays until the new one is complete, and nothing else is left."""
    path = save(tmp_path / "head.safetensors", tiny_head(1))
    before = path.read_bytes()

    with file_size_limit(len(before) - 1), pytest.raises(FileAccessError, match=f"{path}.*larger"):
        save(path, tiny_head(2))
    assert path.read_bytes() == before
    save(path, tiny_head(2))
    assert path.read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_every_tensor_is_needed(tmp_path: Path) -> None:
    """Whichever is missing, it is named."""
    for name in [*head_shapes(DIMS, 1), "mtp.shortlist"]:
        path = spoiled(tmp_path / "head.safetensors", without(name))
        with pytest.raises(HeadError, match=rf"head\.safetensors.*{name}"):
            read_head(path, DIMS)


@pytest.mark.parametrize(
    "name", ["mtp.bias", "mtp.layers.0.self_attn.q_proj.bias", "mtp.layers.1.mlp.up_proj.weight"]
)
def test_nothing_may_be_left_over(name: str, tmp_path: Path) -> None:
    """A tensor that nothing uses is a head that is not understood."""
    path = spoiled(tmp_path / "head.safetensors", replaced(name, mx.zeros(3)))
    with pytest.raises(HeadError, match=name):
        read_head(path, DIMS)


def test_every_tensor_has_one_shape(tmp_path: Path) -> None:
    """A head of another trunk is named with both shapes, and told to be one."""
    for name, shape in head_shapes(DIMS, 1).items():
        wrong = mx.zeros((shape[0] + 2, *shape[1:]))
        path = spoiled(tmp_path / "head.safetensors", replaced(name, wrong))
        with pytest.raises(HeadError, match=rf"{name} is \({wrong.shape[0]}.*another model"):
            read_head(path, DIMS)
    path = save(tmp_path / "head.safetensors", tiny_head())
    with pytest.raises(HeadError, match="another model"):
        read_head(path, replace(DIMS, hidden_size=64))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_are_finite(value: float, tmp_path: Path) -> None:
    """One that is not would silently end all drafting."""

    def spoil(tensors: Tensors) -> None:
        tensors["mtp.layers.0.mlp.down_proj.weight"][3, 4] = value

    path = spoiled(tmp_path / "head.safetensors", spoil)
    with pytest.raises(HeadError, match=r"down_proj.*not finite"):
        read_head(path, DIMS)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 3, 7], "ascending"),  # twice, and q would not be what the law is told
        ([7, 3], "ascending"),
        ([], "ascending"),
        ([[3, 7]], "ascending"),
        ([-1, 3], "token -1 to 3"),
        ([3, 64], "vocabulary ends at 63"),
    ],
)
def test_a_shortlist_lists_tokens_once(ids: list[int], message: str, tmp_path: Path) -> None:
    """In ascending order, within the vocabulary, at least one."""
    stored = mx.array(ids, dtype=mx.int32)
    path = spoiled(tmp_path / "head.safetensors", replaced("mtp.shortlist", stored))
    with pytest.raises(HeadError, match=rf"mtp\.shortlist.*{message}"):
        read_head(path, DIMS)


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    """Also safetensors that are no head at all, and have no metadata."""
    path = spoiled(tmp_path / "head.safetensors", lambda t: None, format="mtplx-head-99")
    with pytest.raises(HeadError, match=r"'mtplx-head-99', not 'mtplx-head-1'"):
        read_head(path, DIMS)
    mx.save_safetensors(str(path), {"x": mx.zeros(3)})
    with pytest.raises(HeadError, match="format None"):
        read_head(path, DIMS)


@pytest.mark.parametrize("name", ["head.safetensors", "head.npz", "head.gguf", "head"])
def test_what_is_not_safetensors_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Cut short anywhere, empty, text, a folder or nothing, whatever it is called."""
    whole = save(tmp_path / "whole.safetensors", tiny_head()).read_bytes()
    path = tmp_path / name
    for content in (b"", b"hello, this is text", b"\xff" * 64, *(whole[:n] for n in (7, 99, -1))):
        path.write_bytes(content)
        with pytest.raises(HeadError, match=rf"{name} is not a readable"):
            read_head(path, DIMS)
    path.unlink()
    with pytest.raises(HeadError, match=rf"{name} is not a readable"):
        read_head(path, DIMS)
    path.mkdir()
    with pytest.raises(HeadError, match=rf"{name} is not a readable"):
        read_head(path, DIMS)


def test_a_head_may_have_any_name(tmp_path: Path) -> None:
    """What it is is read from what is in it."""
    path = tmp_path / "head.bin"
    path.write_bytes(save(tmp_path / "a.safetensors", tiny_head()).read_bytes())
    assert read_head(path, DIMS).trunk == "abc"
