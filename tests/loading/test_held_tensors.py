"""What stored tensors take in memory: by what becomes of them, and together what a model holds."""

import mlx.core as mx
import pytest

from mtplx.loading.expanded_tensors import Manner, foreign_tensors
from mtplx.loading.held_tensors import held_by_name, matrix_bytes

STORED = {
    "a.weight": mx.zeros((8, 16), mx.uint8),
    "a.weight_scale": mx.ones(1),
    "b.weight": mx.zeros((8, 16), mx.float16),
    "c.weight": mx.zeros((3, 5), mx.bfloat16),
    "d.weight": mx.zeros((7, 5), mx.bfloat16),
}


def test_a_packed_matrix_counts_where_its_codes_are() -> None:
    """Its scale is part of that; what a model has as it is stored takes what it takes there."""
    taken = {id(STORED["b.weight"]): 512}
    held = held_by_name(STORED, {"a.weight": 500}, taken, total=1012)
    assert held == {**dict.fromkeys(STORED, 0), "a.weight": 500, "b.weight": 512}


def test_what_is_made_over_shares_the_rest() -> None:
    """By what it has on disk, to the byte."""
    taken = {id(STORED["b.weight"]): 256}
    held = held_by_name(STORED, {"a.weight": 500}, taken, total=500 + 256 + 201)
    assert (held["c.weight"], held["d.weight"]) == (60, 141)


def test_a_packed_matrix_that_a_model_leaves_out_takes_nothing() -> None:
    assert held_by_name(STORED, {}, {}, total=0) == dict.fromkeys(STORED, 0)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_an_expanded_matrix_takes_what_its_weights_do(dtype: mx.Dtype) -> None:
    """Whether nothing may stay packed, or this one has no place as it is; else its codes and what
    is beside them."""
    whole = 8 * 16 * dtype.size
    kept = foreign_tensors(STORED, Manner(dtype, keep=True))
    assert 8 * 16 < matrix_bytes(kept)["a.weight"] < 8 * 16 + 64
    kept.matrices["a.weight"].expand("another order")
    assert matrix_bytes(kept) == {"a.weight": whole}
    assert matrix_bytes(foreign_tensors(STORED, Manner(dtype))) == {"a.weight": whole}
