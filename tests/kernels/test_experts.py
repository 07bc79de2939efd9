"""Products with one of many matrices for each row."""

from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import (
    BlockTile,
    Tiles,
    multiply,
    multiply_by_experts,
    multiply_by_sorted_experts,
)
from mtplx.kernels.source import Maker
from tests.kernels.figures import random_rows
from tests.kernels.hosts import Watch
from tests.kernels.matrices import MATRICES
from tests.kernels.platforms import needs_linux
from tests.tiny import close

EXPERTS, WIDTH, COLUMNS = 5, 19, 256
NAMES = ("Q4_K", "NVFP4 rows", "affine 4 bit")


def stacked(name: str) -> tuple[PackedWeight, list[PackedWeight]]:
    """A stack of experts, and each of them by itself."""
    whole = MATRICES[name](EXPERTS * WIDTH, COLUMNS).packed

    def rows(plane: mx.array | None, e: int) -> mx.array | None:
        return None if plane is None else plane[e * WIDTH : (e + 1) * WIDTH]

    singles = [
        PackedWeight(
            whole.packing,
            (WIDTH, COLUMNS),
            whole.codes[e * WIDTH : (e + 1) * WIDTH],
            rows(whole.scales, e),
            rows(whole.biases, e),
            rows(whole.multiplier, e),
        )
        for e in range(EXPERTS)
    ]
    codes = whole.codes.reshape(EXPERTS, WIDTH, -1)
    return replace(whole, shape=(EXPERTS, WIDTH, COLUMNS), codes=codes), singles


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_few_rows_equal_products_with_their_expert(name: str, slots: int, maker: Maker) -> None:
    """Bit for bit, with an expert that is named twice."""
    together, singles = stacked(name)
    experts = [3, 0, 3, 4]
    x = random_rows(len(experts) // slots, COLUMNS)
    named = mx.array(experts).astype(mx.uint32)
    got = np.array(multiply_by_experts(x, together, named, slots=slots, maker=maker))
    for i, e in enumerate(experts):
        row = x[i // slots : i // slots + 1]
        assert np.array_equal(got[i : i + 1], np.array(multiply(row, singles[e], maker=maker)))


@pytest.mark.parametrize("name", NAMES)
def test_sorted_rows_equal_products_with_their_expert(name: str, maker: Maker) -> None:
    """Experts with no row, one row, a full tile and more than that."""
    together, singles = stacked(name)
    starts = [0, 17, 17, 18, 34, 60]
    ranges = mx.array(list(pairwise(starts))).astype(mx.uint32)
    x = random_rows(starts[-1], COLUMNS)
    tiles = Tiles(many=BlockTile(16, 32))
    got = multiply_by_sorted_experts(x, together, ranges, tiles=tiles, maker=maker)
    for e, single in enumerate(singles):
        mine = x[starts[e] : starts[e + 1]]
        if not len(mine):
            continue
        padded = mx.concatenate([mine, mx.zeros((16, COLUMNS), mx.float16)])
        want = multiply(padded, single, tiles=tiles, maker=maker)[: len(mine)]
        assert mx.array_equal(got[starts[e] : starts[e + 1]], want)


def test_a_gather_of_experts_reads_only_those_that_are_named(maker: Maker) -> None:
    """What the other experts hold, even if it is no number, changes nothing."""
    together, _ = stacked("Q4_K")
    named = mx.array([1, 2]).astype(mx.uint32)
    x = random_rows(2, COLUMNS)
    usual = multiply_by_experts(x, together, named, maker=maker)
    codes = np.array(together.codes)
    codes[[0, 3, 4]] = 0xFF
    damaged = replace(together, codes=mx.array(codes))
    assert mx.array_equal(multiply_by_experts(x, damaged, named, maker=maker), usual)


def test_what_is_no_experts_leaves_the_others_as_they_are(maker: Maker) -> None:
    """A number that none has among few products, a row in no range among many."""
    together, _ = stacked("Q4_K")
    x = random_rows(4, COLUMNS)
    named = mx.array([1, EXPERTS, 2, EXPERTS]).astype(mx.uint32)
    few = multiply_by_experts(x, together, named, maker=maker)
    own = mx.array([0, 2])
    ids = named[own]
    assert mx.array_equal(few[own], multiply_by_experts(x[own], together, ids, maker=maker))
    ranges = mx.array([[0, 0], [0, 1], [2, 3], [3, 3], [3, 3]]).astype(mx.uint32)
    many = multiply_by_sorted_experts(x, together, ranges, maker=maker)
    assert close(many[own].astype(mx.float32), few[own].astype(mx.float32), bound=2e-3)


@needs_linux
def test_of_experts_that_are_not_there_nothing_is_read() -> None:
    """Not a byte of another one in its place."""
    together, singles = stacked("Q4_K")
    watch = Watch(checked=True)
    named = mx.array([1, EXPERTS, EXPERTS + 7]).astype(mx.uint32)
    multiply_by_experts(random_rows(3, COLUMNS), together, named, maker=watch)
    assert watch.results[0].fetched()["w"] == singles[1].codes.nbytes
