"""Products with a packed matrix of each head, along its rows and across them."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.heads import multiply_each, multiply_each_turned
from mtplx.kernels.packing import PackedWeight, fp8_weight
from mtplx.kernels.rows import RowRun, joined_rows
from mtplx.kernels.source import Maker
from mtplx.models.packed import PackedHeads
from mtplx.models.packed_matrix import PackedMatrix
from tests.kernels.hosts import Watch, checked
from tests.kernels.matrices import MATRICES, Floats
from tests.kernels.platforms import needs_linux
from tests.metal_host.static_check import check_static, lint
from tests.tiny import close

HEADS, ROWS, COLUMNS = 3, 20, 256
BOUND = 2e-3
# One of each way to lay out a block and to store scales.
NAMES = ("Q4_0", "Q4_K", "NVFP4 rows", "FP8 channel", "FP8 128 x 128", "int4 centred", "BF16")
Product = Callable[..., mx.array]
PRODUCTS: dict[str, tuple[Product, int, str]] = {
    "along": (multiply_each, COLUMNS, "hmk,hnk->hmn"),
    "across": (multiply_each_turned, ROWS, "hmn,hnk->hmk"),
}


def heads(name: str) -> tuple[PackedWeight, Floats]:
    """The matrices of heads, and their weights [H, N, K]."""
    matrix = MATRICES[name](HEADS * ROWS, COLUMNS)
    weight = joined_rows([RowRun(matrix.packed, 0, HEADS * ROWS)], (HEADS,))
    assert weight is not None
    return weight, matrix.weights.reshape(HEADS, ROWS, COLUMNS)


def rows_of(count: int, width: int, dtype: mx.Dtype = mx.float16) -> mx.array:
    x = mx.random.normal((HEADS, count, width), scale=1 / 64, key=mx.random.key(count))
    return x.astype(dtype)


@pytest.mark.parametrize("way", PRODUCTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_head_is_multiplied_by_its_own(name: str, way: str, maker: Maker) -> None:
    """In every layout; one row, and more than are taken at once."""
    product, width, sums = PRODUCTS[way]
    weight, weights = heads(name)
    for count in (1, 11):
        x = rows_of(count, width)
        want = np.einsum(sums, np.array(x, np.float64), weights.astype(np.float64))
        got = np.array(product(x, weight, maker=maker), np.float64)
        assert got.shape == want.shape
        assert np.abs(got - want).max() < BOUND * np.abs(want).max()


@pytest.mark.parametrize("way", PRODUCTS)
def test_rows_of_a_block_equal_single_rows_bit_for_bit(way: str, maker: Maker) -> None:
    """A verify pass over many rows gives what as many plain steps give."""
    product, width, _ = PRODUCTS[way]
    weight, _ = heads("NVFP4 rows")
    x = rows_of(17, width, mx.float32)
    together = product(x, weight, maker=maker)
    for i in (0, 3, 4, 8, 16):
        assert mx.array_equal(together[:, i], product(x[:, i : i + 1], weight, maker=maker)[:, 0])


def test_columns_of_rows_with_zeros_between_are_put_together(maker: Maker) -> None:
    """Rows of 24, whose codes take 32 places."""
    codes = np.random.default_rng(0).integers(0, 0x7F, (HEADS, 5, 24), np.uint8)
    weight = fp8_weight(mx.array(codes), mx.array(1.0))
    x = rows_of(2, 5, mx.float32)
    want = x @ mx.from_fp8(mx.array(codes), mx.float32)
    assert close(multiply_each_turned(x, weight, maker=maker), want)


@needs_linux
@pytest.mark.parametrize("way", PRODUCTS)
def test_nothing_that_is_undefined_is_done(way: str) -> None:
    """No race, nothing out of bounds; and Metal would take the text."""
    product, width, _ = PRODUCTS[way]
    weight, _ = heads("Q4_K")
    product(rows_of(6, width), weight, maker=checked)
    watch = Watch()
    product(rows_of(6, width), weight, maker=watch)
    for result in watch.results:
        assert check_static(result.text) == []
        assert lint(result.text) == []


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("own_rows", [False, True])
def test_a_module_is_what_it_is_in_place_of(
    turned: bool, transpose: bool, own_rows: bool, maker: Maker
) -> None:
    """Of two texts at once, with rows of each head's own or the same for all."""
    from mlx_lm.models.mla import MultiLinear

    weight, weights = heads("FP8 channel")
    module = PackedHeads(PackedMatrix(weight, maker=maker), turned)
    dense: Any = MultiLinear(COLUMNS, ROWS, HEADS)
    dense.weight = mx.array(weights).swapaxes(1, 2) if turned else mx.array(weights)
    assert module.shape == dense.weight.shape
    width = dense.weight.shape[2 if transpose else 1]
    x = mx.random.normal((2, HEADS if own_rows else 1, 5, width), key=mx.random.key(0))
    assert close(module(x, transpose), dense(x, transpose), bound=1e-5)
