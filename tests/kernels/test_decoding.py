"""Every format's decoding function gives the weights that independent code makes of its blocks."""

from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.packing import (
    GGUF_PACKINGS,
    fp8_weight,
    gguf_weight,
    mxfp4_weight,
    mxfp8_weight,
    nvfp4_weight,
)
from mtplx.kernels.product import embed
from mtplx.kernels.source import Maker
from mtplx.quant.formats import BLOCK_FORMATS
from tests.blocks import valid_blocks, weights_of
from tests.kernels.codebook_text import FILES, path_of, text_of
from tests.kernels.matrices import MATRICES
from tests.metal_host.dtypes import to_numpy

REAL_BLOCKS = Path(__file__).parents[1] / "assets" / "ggml-blocks.safetensors"
EVERY_BYTE = np.arange(256, dtype=np.uint8)


def rows(count: int) -> mx.array:
    return mx.arange(count).astype(mx.uint32)


def test_every_format_of_gguf_has_a_kernel() -> None:
    assert {name: packing.block for name, packing in GGUF_PACKINGS.items()} == {
        name: fmt.block for name, fmt in BLOCK_FORMATS.items()
    }


@pytest.mark.parametrize("name", MATRICES)
def test_weights_are_those_of_independent_code(name: str, maker: Maker) -> None:
    """In float32, bit for bit. MLX rounds its own formats once more."""
    matrix = MATRICES[name](9, 512)
    got = np.array(embed(rows(9), matrix.packed, mx.float32, maker=maker))
    if matrix.exact:
        assert np.array_equal(got, matrix.weights)
    else:
        np.testing.assert_allclose(got, matrix.weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in GGUF_PACKINGS if name != "MXFP4"])
def test_any_exponent_is_decoded(name: str, maker: Maker) -> None:
    """Scales of every size, subnormal ones too."""
    fmt = BLOCK_FORMATS[name]
    raw = valid_blocks(fmt, 4096 // fmt.block, seed=2)
    packed = gguf_weight(name, mx.array(raw.reshape(8, -1)), 512)
    got = np.array(embed(rows(8), packed, mx.float32, maker=maker))
    assert np.array_equal(got, weights_of(fmt, raw).reshape(8, 512))


def test_real_blocks_of_llama_cpp(maker: Maker) -> None:
    """Quantised there from real weights; a shuffled order of rows."""
    stored = mx.load(str(REAL_BLOCKS))
    assert isinstance(stored, dict)
    ids = mx.array([5, 0, 15, 5, 2, 1, 9, 14]).astype(mx.uint32)
    for name, fmt in BLOCK_FORMATS.items():
        raw = np.array(stored[name]).reshape(16, -1)
        weights = weights_of(fmt, raw.reshape(-1, fmt.num_bytes)).reshape(16, 256)
        got = embed(ids, gguf_weight(name, mx.array(raw), 256), mx.float32, maker=maker)
        assert np.array_equal(np.array(got), weights[np.array(ids)]), name


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_rows_are_rounded_once(dtype: mx.Dtype, maker: Maker) -> None:
    """To nearest, as the host rounds."""
    matrix = MATRICES["Q5_K"](3, 256)
    got = to_numpy(embed(rows(3), matrix.packed, dtype, maker=maker))
    assert np.array_equal(got, matrix.weights.astype(got.dtype))


def test_every_byte_of_e4m3(maker: Maker) -> None:
    """As a weight of FP8 with its sign, and as a scale of NVFP4 without."""
    numbers = EVERY_BYTE.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    fp8 = fp8_weight(mx.array(EVERY_BYTE.reshape(1, 256)), mx.array(1.0))
    got = np.array(embed(rows(1), fp8, mx.float32, maker=maker))
    assert np.array_equal(got[0], numbers, equal_nan=True)
    ones = mx.full((1, 16 * 256 // 2), 0x22, mx.uint8)  # E2M1 of 1
    nvfp4 = nvfp4_weight(ones, mx.array(EVERY_BYTE.reshape(1, 256)), mx.array(1.0))
    got = np.array(embed(rows(1), nvfp4, mx.float32, maker=maker))
    assert np.array_equal(got[0, ::16], np.abs(numbers), equal_nan=True)


def test_every_byte_of_e8m0(maker: Maker) -> None:
    """As a scale of MXFP4 and MXFP8."""
    numbers = EVERY_BYTE.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    ones = mx.full((1, 32 * 256 // 2), 0x22, mx.uint8)
    mxfp4 = mxfp4_weight(ones, mx.array(EVERY_BYTE.reshape(1, 256)))
    got = np.array(embed(rows(1), mxfp4, mx.float32, maker=maker))
    assert np.array_equal(got[0, ::32], numbers, equal_nan=True)
    mxfp8 = mxfp8_weight(mx.full((1, 32 * 256), 0x38, mx.uint8), mx.array(EVERY_BYTE[None]))
    got = np.array(embed(rows(1), mxfp8, mx.float32, maker=maker))
    assert np.array_equal(got[0, ::32], numbers, equal_nan=True)


@pytest.mark.parametrize("tile", [(128, 128), (64, 32), (1, 128)])
def test_scales_of_tiles_reach_their_weights(tile: tuple[int, int], maker: Maker) -> None:
    """Tiles of any size that has whole parts in it, cut off at the edges; E8M0 as well."""
    codes, weights = np.full((130, 208), 0x38, np.uint8), np.ones((130, 208), np.float32)
    shape = (-(-130 // tile[0]), -(-208 // tile[1]))
    powers = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape) % 100 + 100
    scales = powers.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    wide = np.repeat(np.repeat(scales, tile[0], 0), tile[1], 1)[:130, :208]
    for stored in (mx.array(scales), mx.array(powers)):
        packed = fp8_weight(mx.array(codes), stored, tile)
        got = np.array(embed(rows(130), packed, mx.float32, maker=maker))
        assert np.array_equal(got, weights * wide)


@pytest.mark.parametrize("name", FILES)
def test_codebooks_are_those_of_ggml(name: str) -> None:
    """The tables in the Metal files are what the generator makes of the `gguf` package's."""
    assert path_of(name).read_text() == text_of(name)
