"""Products with packed weights: right in every format, for every number of rows, at every edge."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.packing import fp8_weight, nvfp4_weight
from mtplx.kernels.product import MOST_ROWS, BlockTile, RowTile, Tiles, multiply
from mtplx.kernels.source import Maker
from tests.kernels.figures import random_rows
from tests.kernels.matrices import MATRICES, Matrix
from tests.metal_host.dtypes import to_numpy

BOUND = 2e-3  # of the largest result; twice that in bfloat16, which alone rounds by up to 2^-8
DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
# One of each way to store scales; the others differ in decoding, which is tested by itself.
KINDS = ("Q4_0", "Q4_K", "IQ3_S", "NVFP4 rows")
slow = pytest.mark.slow


def error(x: mx.array, matrix: Matrix, got: mx.array) -> float:
    """The largest error as a share of the largest result."""
    want = to_numpy(x).astype(np.float64) @ matrix.weights.astype(np.float64).T
    return float(np.abs(to_numpy(got).astype(np.float64) - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", MATRICES)
def test_every_format_multiplies(name: str, maker: Maker) -> None:
    """One row, a width that fits no tile, several blocks."""
    matrix = MATRICES[name](11, 512)
    x = random_rows(1, 512)
    assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < BOUND


@pytest.mark.parametrize("name", KINDS)
def test_many_rows_multiply(name: str, maker: Maker) -> None:
    matrix = MATRICES[name](35, 512)
    for rows in (9, 33):
        x = random_rows(rows, 512)
        assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < BOUND


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 16, 64])
def test_every_number_of_rows(rows: int, maker: Maker) -> None:
    matrix = MATRICES["Q4_K"](37, 256)
    x = random_rows(rows, 256)
    assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < BOUND


@slow
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 9, 16, 64])
def test_every_number_of_rows_in_every_format(name: str, rows: int, maker: Maker) -> None:
    matrix = MATRICES[name](37, 256)
    x = random_rows(rows, 256)
    assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < BOUND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 20])
def test_every_type_of_activations(rows: int, dtype: str, maker: Maker) -> None:
    """The result has the type of x, and float32 keeps its precision."""
    matrix = MATRICES["Q6_K"](21, 512)
    x = random_rows(rows, 512, DTYPES[dtype])
    weights = matrix.packed
    got = multiply(x, weights, maker=maker)
    assert got.dtype == DTYPES[dtype]
    bound = {"float16": BOUND, "bfloat16": 2 * BOUND, "float32": 1e-5}[dtype]
    assert error(x, matrix, got) < bound


@pytest.mark.parametrize("columns", [32, 64, 96, 1056])
def test_one_block_and_many(columns: int, maker: Maker) -> None:
    """K of a single block, of an odd number of them, and more than the lanes take at once."""
    matrix = MATRICES["Q5_1"](7, columns)
    for rows in (2, 9):
        x = random_rows(rows, columns)
        assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < BOUND


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_a_block_equal_single_rows_bit_for_bit(name: str, maker: Maker) -> None:
    """A verify pass over up to eight rows gives what eight plain steps give."""
    matrix = MATRICES[name](10, 768)
    x = random_rows(MOST_ROWS, 768)
    single = [np.array(multiply(x[i : i + 1], matrix.packed, maker=maker)) for i in range(8)]
    counts = range(2, MOST_ROWS + 1) if name == "Q4_0" else (4, MOST_ROWS)
    for rows in counts:
        together = np.array(multiply(x[:rows], matrix.packed, maker=maker))
        assert np.array_equal(together, np.concatenate(single[:rows]))


def test_tile_sizes_change_nothing(maker: Maker) -> None:
    """For few rows not a bit, for many rows no more than rounding."""
    matrix = MATRICES["Q4_0"](40, 256)
    x = random_rows(3, 256)
    usual = np.array(multiply(x, matrix.packed, maker=maker))
    for columns, simdgroups in ((1, 1), (2, 4), (8, 1)):
        tiles = Tiles(few=RowTile(columns, simdgroups))
        assert np.array_equal(np.array(multiply(x, matrix.packed, tiles=tiles, maker=maker)), usual)
    x = random_rows(40, 256)
    for shape in ((16, 16), (64, 32), (16, 64)):
        tiles = Tiles(many=BlockTile(*shape))
        assert error(x, matrix, multiply(x, matrix.packed, tiles=tiles, maker=maker)) < BOUND


@pytest.mark.parametrize("rows", [2, 9])
def test_bias_is_added_before_rounding(rows: int, maker: Maker) -> None:
    matrix = MATRICES["Q4_0"](11, 256)
    x, bias = random_rows(rows, 256), mx.random.normal((11,), key=mx.random.key(1))
    without = multiply(x.astype(mx.float32), matrix.packed, maker=maker)
    got = multiply(x.astype(mx.float32), matrix.packed, bias, maker=maker)
    assert mx.array_equal(got, without + bias)


@pytest.mark.parametrize("rows", [2, 9])
def test_a_sum_beyond_half_precision_is_scaled_in_float32(rows: int, maker: Maker) -> None:
    """Without its tensor's scale the product would be infinite in float16."""
    codes = np.full((8, 128), 0x77, np.uint8)  # 6 everywhere
    scales = np.full((8, 16), 0x7E, np.uint8)  # 448
    packed = nvfp4_weight(mx.array(codes), mx.array(scales), mx.array(1e-4))
    x = mx.full((rows, 256), 100, mx.float16)
    got = np.array(multiply(x, packed, maker=maker)).astype(np.float64)
    np.testing.assert_allclose(got, 6 * 448 * 1e-4 * 100 * 256, rtol=1e-3)


@pytest.mark.parametrize("rows", [2, 9])
def test_large_activations_do_not_overflow(rows: int, maker: Maker) -> None:
    """Outliers of 3e4 and 1e6, as models have them, in the types that hold them."""
    matrix = MATRICES["Q8_0"](11, 256)
    ones = fp8_weight(mx.full((11, 256), 0x38, mx.uint8), mx.array(1e-3))
    for dtype, size in ((mx.float16, 3e4), (mx.bfloat16, 1e6), (mx.float32, 1e6)):
        x = random_rows(rows, 256, mx.float32)
        x[:, 7] = size
        x[:, 9] = -size
        x = x.astype(dtype)
        if dtype == mx.float16:  # whose results have to be scaled to be held
            got = to_numpy(multiply(x, ones, maker=maker))
            assert np.isfinite(got.astype(np.float32)).all()
        else:
            assert error(x, matrix, multiply(x, matrix.packed, maker=maker)) < 2 * BOUND
