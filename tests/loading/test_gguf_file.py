"""Tensors of a GGUF file: the numbers they stand for, and files that are not whole."""

import struct
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.errors import CheckpointError, MtplxError, UnsupportedTensorError
from mtplx.kernels.source import Maker, metal
from mtplx.loading.gguf_affine import AFFINE_FORMATS
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_tensors import GgufTensors, Rows, gguf_tensors, rows_in_half_split_order
from mtplx.models.matrix import AffineMatrix
from mtplx.quant.formats import BLOCK_FORMATS
from tests.blocks import valid_blocks, weights_of, write_typed
from tests.foreign import pairwise_rows, read_llama, write_gguf, write_llama
from tests.kernels.hosts import fast
from tests.tiny import DIMS, tiny_target

Bytes = NDArray[np.uint8]
MAKER: Maker = fast if sys.platform == "linux" else metal
KINDS = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32")
ROWS, WIDTH = 24, 96


def random_bytes(kind: str, seed: int = 0) -> Bytes:
    """[ROWS, bytes of WIDTH weights], every bit at random but for scales, which are finite."""
    rng = np.random.default_rng([seed, len(kind)])
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, size=(ROWS, WIDTH // block, size), dtype=np.uint8)
    if kind in AFFINE_FORMATS:
        half = rng.normal(size=(ROWS, WIDTH // block, 2)) * 10.0 ** rng.integers(-7, 2)
        half[0, 0] = [0.0, -0.0]
        half[0, 1] = [6e-8, -6e-8]  # half precision's smallest number
        raw[..., :4] = half.astype(np.float16).view(np.uint8)
        if not AFFINE_FORMATS[kind].has_min:
            raw[..., 2:4] = rng.integers(0, 256, size=(ROWS, WIDTH // block, 2))
    else:
        floats = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
        return gguf.quants.quantize(floats, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    return raw.reshape(ROWS, -1)


def one_tensor(path: Path, kind: str, raw: Bytes, *, packed: bool = False) -> GgufTensors:
    write_gguf(path / "a.gguf", {"w.weight": raw}, {}, lambda name: kind)
    return gguf_tensors(open_gguf(path / "a.gguf"), packed=packed, maker=MAKER)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_what_the_gguf_package_decodes(kind: str, packed: bool, tmp_path: Path) -> None:
    """Random bits, tiny scales and negative ones: equal in every bit of float32."""
    for seed in range(4):
        raw = random_bytes(kind, seed)
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        matrix = one_tensor(tmp_path, kind, raw, packed=packed).matrix("w.weight", ROWS, WIDTH)
        assert matrix.shape == (ROWS, WIDTH)
        assert isinstance(matrix, AffineMatrix) == (packed and kind in AFFINE_FORMATS)
        rows = matrix.rows(mx.arange(ROWS))
        assert rows.dtype == mx.float32
        assert np.array_equal(np.array(rows), expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_rotary_heads_come_in_halves(kind: str, packed: bool, tmp_path: Path) -> None:
    """In any format, from the pairs that they are stored in."""
    raw = random_bytes(kind)
    tensors = one_tensor(tmp_path, kind, pairwise_rows(raw, 3), packed=packed)
    rows = tensors.joined([Rows("w.weight", ROWS, 3)], WIDTH).rows(mx.arange(ROWS))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(np.array(rows), expected)


@pytest.mark.parametrize("kind", AFFINE_FORMATS)
def test_expanded_weights_are_exactly_the_packed_ones(kind: str, tmp_path: Path) -> None:
    """MLX's own expansion of what stays packed on a GPU."""
    raw = random_bytes(kind, 5)
    expanded = one_tensor(tmp_path, kind, raw).matrix("w.weight", ROWS, WIDTH)
    packed = one_tensor(tmp_path, kind, raw, packed=True).matrix("w.weight", ROWS, WIDTH)
    assert isinstance(packed, AffineMatrix)
    (found,), (expected,) = expanded.arrays(), packed.dense().arrays()
    assert np.array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("kind", AFFINE_FORMATS)
def test_a_product_with_packed_weights_converts_nothing(kind: str, tmp_path: Path) -> None:
    """Scales in another type than the activations would be widened in every product."""
    packed = one_tensor(tmp_path, kind, random_bytes(kind), packed=True)
    product = packed.matrix("w.weight", ROWS, WIDTH)(mx.ones((3, WIDTH)))
    mx.export_to_dot(str(tmp_path / "graph.dot"), product)
    graph = (tmp_path / "graph.dot").read_text()
    assert "QuantizedMatmul" in graph
    assert "AsType" not in graph


@pytest.mark.parametrize("kinds", [("Q4_1", "Q8_0"), ("Q4_0", "Q4_0"), ("Q8_0", "F16")])
def test_joined_tensors_are_their_rows_in_order(kinds: tuple[str, str], tmp_path: Path) -> None:
    """Whatever types they are of; more rows than are expanded at a time."""
    values = np.random.default_rng(1).normal(size=(2, 700, WIDTH)).astype(np.float32)
    types = dict(zip(("a.weight", "b.weight"), kinds, strict=True))
    write_gguf(tmp_path / "a.gguf", dict(zip(types, values, strict=True)), {}, types.__getitem__)
    expected = []
    for kind, rows in zip(kinds, values, strict=True):
        quantisation = gguf.GGMLQuantizationType[kind]
        stored = gguf.quants.quantize(rows, quantisation)
        expected.append(gguf.quants.dequantize(stored, quantisation))
    tensors = gguf_tensors(open_gguf(tmp_path / "a.gguf"), packed=False)
    joined = tensors.joined([Rows(name, 700) for name in types], WIDTH)
    assert joined.shape == (1400, WIDTH)
    assert np.array_equal(np.array(joined.rows(mx.arange(1400))), np.concatenate(expected))


@pytest.mark.parametrize(("heads", "size"), [(1, 2), (1, 8), (3, 4), (9, 64)])
def test_rows_of_a_head_are_put_back_into_halves(heads: int, size: int) -> None:
    """Undoes what a converter does to the rows of q and k, for any number of heads."""
    weight = np.arange(heads * size * 5, dtype=np.float32).reshape(heads * size, 5)
    stored = pairwise_rows(weight, heads)
    assert np.array_equal(stored[rows_in_half_split_order(heads, heads * size)], weight)


def test_wide_numbers_stay_finite(tmp_path: Path) -> None:
    """BF16 reaches far beyond half precision at both ends."""
    values = np.array([[1e5, -3e38, 1e-9, 65504.0, 65536.0, 1e-38]], dtype=np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    weight = one_tensor(tmp_path, "BF16", raw).matrix("w.weight", 1, 6)
    assert np.allclose(np.array(weight.rows(mx.array([0]))), values, rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_vectors_are_float32(kind: str, tmp_path: Path) -> None:
    """Norm weights come dense, whatever they are stored as."""
    values = np.random.default_rng(0).normal(size=64).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    write_gguf(tmp_path / "a.gguf", {"n.weight": values}, {}, lambda name: kind)
    vector = gguf_tensors(open_gguf(tmp_path / "a.gguf"), packed=False).vector("n.weight", 64)
    assert vector.dtype == mx.float32
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(np.array(vector), expected)


def test_a_packed_vector_is_refused_by_name(tmp_path: Path) -> None:
    """A norm in blocks is a file that is not understood."""
    values = np.ones(64, dtype=np.float32)
    write_gguf(tmp_path / "a.gguf", {"n.weight": values}, {}, lambda name: "Q8_0")
    tensors = gguf_tensors(open_gguf(tmp_path / "a.gguf"), packed=False)
    with pytest.raises(UnsupportedTensorError, match=r"n\.weight is of type Q8_0.*BF16"):
        tensors.vector("n.weight", 64)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", AFFINE_FORMATS)
def test_a_scale_that_is_no_number_is_refused_by_name(
    kind: str, value: float, tmp_path: Path
) -> None:
    """One damaged block among many, its scale or its minimum."""
    for field in range(1 + AFFINE_FORMATS[kind].has_min):
        raw = random_bytes(kind)
        raw[7, 2 * field : 2 * field + 2] = np.array([value], np.float16).view(np.uint8)
        tensors = one_tensor(tmp_path, kind, raw)
        with pytest.raises(CheckpointError, match=r"w\.weight.*not finite"):
            tensors.matrix("w.weight", ROWS, WIDTH)


@pytest.mark.parametrize(("kind", "scale"), [("Q4_0", 60_000.0), ("Q8_0", 600.0)])
def test_a_scale_too_large_for_its_offset_is_refused(
    kind: str, scale: float, tmp_path: Path
) -> None:
    """Where half precision cannot hold centre times scale, packed weights would be infinite."""
    raw = random_bytes(kind)
    raw[7, :2] = np.array([scale], np.float16).view(np.uint8)
    tensors = one_tensor(tmp_path, kind, raw, packed=True)
    with pytest.raises(CheckpointError, match=r"w\.weight"):
        tensors.matrix("w.weight", ROWS, WIDTH)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_every_block_format_is_expanded(kind: str, tmp_path: Path) -> None:
    """Through a file whose table has the type's number, to the weights that the format says."""
    fmt = BLOCK_FORMATS[kind]
    raw = valid_blocks(fmt, 24 * 2, seed=1).reshape(24, -1)
    path = write_typed(tmp_path / "a.gguf", "w.weight", raw, (24, 2 * fmt.block), fmt.number)
    tensors = gguf_tensors(open_gguf(path), packed=False)
    expected = weights_of(fmt, raw.reshape(-1, fmt.num_bytes)).reshape(24, -1)
    found = tensors.matrix("w.weight", 24, 2 * fmt.block).rows(mx.arange(24))
    assert np.array_equal(np.array(found), expected)


def test_a_type_that_no_weights_are_in_is_named_before_anything_is_read(tmp_path: Path) -> None:
    """With the tensor that has it, and what could be read; the file can still be described."""
    values = np.zeros((4, 8), np.int32)
    path = write_typed(tmp_path / "a.gguf", "odd.weight", values.view(np.uint8), (4, 8), 26)
    file = open_gguf(path)
    assert file.tensors["odd.weight"].type == "I32"
    with pytest.raises(UnsupportedTensorError, match=r"I32 .in odd\.weight.*Q4_1"):
        gguf_tensors(file, packed=False)


def tiny_file(path: Path) -> Path:
    return write_llama(path, tiny_target())


def type_field(whole: bytes, name: bytes) -> int:
    """Where the type of a two-dimensional tensor is written."""
    return whole.index(name) + len(name) + 4 + 2 * 8


@pytest.mark.parametrize("type_id", [4, 36, 99, 142, 2**31])
def test_a_type_that_nobody_knows_is_not_called_damage_alone(type_id: int, tmp_path: Path) -> None:
    """A number that was never given, was withdrawn, or is newer than this program."""
    path = tiny_file(tmp_path)
    whole = bytearray(path.read_bytes())
    place = type_field(bytes(whole), b"blk.0.attn_v.weight")
    assert whole[place : place + 4] == bytes(4)  # F32
    whole[place : place + 4] = struct.pack("<I", type_id)
    path.write_bytes(whole)
    with pytest.raises(
        UnsupportedTensorError,
        match=rf"tiny\.gguf.*newer.*{type_id} .first in blk\.0\.attn_v.*Q4_K",
    ):
        open_gguf(path)


def test_another_file_is_not_a_gguf(tmp_path: Path) -> None:
    """What it starts with is shown."""
    path = tmp_path / "a.gguf"
    for content in (b"", b"GG", b"version https://git-lfs"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"a\.gguf is not a GGUF.*{content[:4]!r}"):
            open_gguf(path)


def test_a_file_cut_short_anywhere_is_an_error_that_says_so(tmp_path: Path) -> None:
    """In the header, the metadata, the tensor table or the data: never a model with holes."""
    path = tiny_file(tmp_path)
    whole = path.read_bytes()
    data = whole.index(b"output.weight") + 200  # where the table has surely ended
    last = len(whole) - 4 * DIMS.hidden_size  # cut into the last tensor, not into padding
    lengths = [*range(4, data, 37), *range(data, last, len(whole) // 40), last]
    cut = tmp_path / "cut.gguf"
    for length in lengths:
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf is damaged or cut short"):
            open_gguf(cut)


@pytest.mark.parametrize("count", [0, 1, 20, 22, 1000, 2**40])
def test_a_header_that_miscounts_its_tensors_is_an_error(count: int, tmp_path: Path) -> None:
    """Fewer or more than there are: by name of a missing one, or as damage."""
    path = tiny_file(tmp_path)
    whole = bytearray(path.read_bytes())
    assert struct.unpack_from("<Q", whole, 8) == (21,)
    struct.pack_into("<Q", whole, 8, count)
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"damaged|has no tensor|promises"):
        read_llama(path)


@pytest.mark.slow
def test_no_damage_ends_in_anything_but_an_error_for_people(tmp_path: Path) -> None:
    """Bytes of the header, metadata and table overwritten at random: read, or refused."""
    path = tiny_file(tmp_path)
    whole = path.read_bytes()
    end = whole.index(b"output.weight") + 60
    rng, num_refused = np.random.default_rng(0), 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(4, end))] = int(
                rng.choice([0, 1, 255, int(rng.integers(256))])
            )
        path.write_bytes(damaged)
        try:
            read_llama(path)
        except MtplxError:
            num_refused += 1
    assert num_refused > 200


def in_parts(folder: Path, count: int) -> list[Path]:
    """The tiny model's file, its tensors dealt out to files as llama.cpp names them."""
    whole = open_gguf(tiny_file(folder))
    names = list(whole.tensors)
    files = []
    for i in range(count):
        part = {name: whole.tensors[name].rows.view(np.float32) for name in names[i::count]}
        metadata = dict(whole.metadata if i == 0 else {"general.architecture": "llama"})
        metadata |= {"split.no": i, "split.count": count, "split.tensors.count": len(names)}
        del metadata["general.architecture"]  # the writer adds it
        path = folder / f"m-{i + 1:05d}-of-{count:05d}.gguf"
        files.append(write_gguf(path, part, metadata, lambda name: "F32"))
    return files


def test_a_model_in_several_files_is_the_one_in_one(tmp_path: Path) -> None:
    """Whichever of them is named."""
    expected = read_llama(tiny_file(tmp_path))
    for path in in_parts(tmp_path, 3):
        found = read_llama(path)
        for one, other in zip(found.arrays(), expected.arrays(), strict=True):
            assert mx.array_equal(one, other)


def test_a_missing_or_foreign_part_is_named(tmp_path: Path) -> None:
    """Never a model with holes."""
    files = in_parts(tmp_path, 3)
    lone = tmp_path / "lone.gguf"
    lone.write_bytes(files[0].read_bytes())
    with pytest.raises(CheckpointError, match=r"one of 3 files by its metadata"):
        open_gguf(lone)
    second = files[1].read_bytes()
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(CheckpointError, match=r"is in .*00003-of-00003\.gguf and before"):
        open_gguf(files[0])
    files[1].write_bytes(tiny_file(tmp_path).read_bytes())
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf does not belong to"):
        open_gguf(files[0])
    files[1].write_bytes(second)
    files[2].unlink()
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf is not there"):
        open_gguf(files[0])


@pytest.mark.parametrize("offset", [32, 1 << 40])
def test_tensors_that_overlap_or_leave_the_file_are_refused(offset: int, tmp_path: Path) -> None:
    """By name: what a damaged offset leads to are other tensors' numbers."""
    path = tiny_file(tmp_path)
    whole = bytearray(path.read_bytes())
    place = type_field(bytes(whole), b"blk.0.attn_v.weight") + 4
    whole[place : place + 8] = struct.pack("<Q", offset)
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"damaged.*(begins inside|reaches from byte)"):
        open_gguf(path)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    """The format has no place for a part of a block."""
    raw = np.zeros((4, 144), np.uint8)
    path = write_typed(tmp_path / "a.gguf", "w.weight", raw, (4, 100), 12)
    with pytest.raises(
        CheckpointError, match=r"w\.weight is \[4, 100\], and Q4_K has blocks of 256"
    ):
        open_gguf(path)
