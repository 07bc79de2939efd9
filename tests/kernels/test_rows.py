"""Rows of packed matrices, put together, are the rows of their weights."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import embed, multiply_by_experts
from mtplx.kernels.rows import RowRun, joined_rows, num_rows_of
from mtplx.kernels.source import Maker
from mtplx.models.module_matrix import ModuleMatrix, with_rows
from mtplx.models.packed_matrix import PackedMatrix
from mtplx.models.shortlist import make_shortlist, widen
from tests.kernels.figures import random_rows
from tests.kernels.matrices import MATRICES, Floats

NAMES = ("Q4_K", "NVFP4 rows", "FP8 channel", "FP8 128 x 128", "affine 4 bit", "int4 centred")


def rows_of(weight: PackedWeight, maker: Maker) -> Floats:
    ids = mx.arange(num_rows_of(weight)).astype(mx.uint32)
    return np.array(embed(ids, weight, mx.float32, maker=maker))


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_rows_come_in_their_order(name: str, maker: Maker) -> None:
    """Of two matrices, neither from its beginning nor to its end."""
    one, other = MATRICES[name](9, 256), MATRICES[name](135, 256)
    runs = [(other, 130, 135), (one, 2, 4), (other, 0, 3), (one, 8, 9)]
    joined = joined_rows([RowRun(m.packed, start, stop) for m, start, stop in runs], ())
    assert joined is not None
    assert joined.shape == (11, 256)
    expected = [rows_of(m.packed, maker)[start:stop] for m, start, stop in runs]
    assert np.array_equal(rows_of(joined, maker), np.concatenate(expected))


@pytest.mark.parametrize("rows", [128, 130])
@pytest.mark.parametrize("name", NAMES)
def test_matrices_of_experts_are_stacked(name: str, rows: int, maker: Maker) -> None:
    """Scales that several rows share stay shared where no two experts would have them in common."""
    one, other = (MATRICES[name](rows, 256).packed for _ in range(2))
    weight = joined_rows([RowRun(one, 0, rows), RowRun(other, 0, rows)], (2,))
    assert weight is not None
    assert weight.shape == (2, rows, 256)
    assert weight.packing.shared_rows == (128 if (name, rows) == ("FP8 128 x 128", 128) else 1)
    x, chosen = random_rows(2, 256), mx.array([1, 0]).astype(mx.uint32)
    found = np.array(multiply_by_experts(x, weight, chosen, maker=maker).astype(mx.float32))
    dense = np.array(x.astype(mx.float32)) @ rows_of(one, maker).T
    assert np.abs(found - dense).max() < 2e-3 * np.abs(dense).max()


@pytest.mark.parametrize("name", NAMES)
def test_a_shortlist_of_a_packed_matrix_stays_packed(name: str, maker: Maker) -> None:
    """Its logits are those of the matrix, bit for bit, before and after it is widened."""
    matrix = PackedMatrix(MATRICES[name](135, 256).packed, maker=maker)
    short = make_shortlist(matrix, mx.array([2, 3, 130, 134], dtype=mx.int32))
    wide = widen(short, matrix, [0, 3, 133])
    g = random_rows(2, 256)
    for shortlist in (short, wide):
        assert mx.array_equal(shortlist.logits(g), matrix(g)[:, shortlist.ids])
        assert all(a.shape[0] <= 4 for a in shortlist.matrix.arrays())
    assert mx.array_equal(short.weight, matrix.rows(short.ids))


def test_rows_of_a_matrix_that_mlx_packs_are_a_matrix() -> None:
    """A bias included."""
    whole = nn.Linear(64, 10).to_quantized(group_size=32, bits=4)
    ids, x = mx.array([7, 2]), mx.random.normal((3, 64), key=mx.random.key(0))
    few = ModuleMatrix(with_rows(whole, ids))
    assert few.shape == (2, 64)
    assert mx.array_equal(few(x), whole(x)[:, ids])
    assert whole.weight.shape[0] == 10


def test_what_is_packed_differently_is_not_put_together() -> None:
    """Nor are rows of other lengths."""
    one, other = MATRICES["Q4_K"](2, 256).packed, MATRICES["Q5_K"](2, 256).packed
    longer = MATRICES["Q4_K"](2, 512).packed
    for second in (other, longer):
        assert joined_rows([RowRun(one, 0, 2), RowRun(second, 0, 2)], ()) is None


def test_scales_that_rows_share_are_put_together_with_no_other() -> None:
    """Where a run ends between such rows, too, whichever comes first."""
    tiles, row = (MATRICES[name](135, 256).packed for name in ("FP8 128 x 128", "FP8 channel"))
    runs = [RowRun(tiles, 0, 5), RowRun(row, 0, 5)]
    assert joined_rows(runs, ()) is None
    assert joined_rows(runs[::-1], ()) is None


def test_a_matrix_without_a_factor_keeps_its_weights() -> None:
    """Beside one that has a factor."""
    one = MATRICES["Q4_K"](2, 256).packed
    assert one.multiplier is None
    scaled = PackedWeight(one.packing, one.shape, one.codes, multiplier=mx.array([2.0, 3.0]))
    joined = joined_rows([RowRun(one, 0, 2), RowRun(scaled, 0, 2)], ())
    assert joined is not None
    assert joined.multiplier is not None
    assert joined.multiplier.tolist() == [1, 1, 2, 3]
