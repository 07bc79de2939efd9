"""What the kernels must not do, and that tests see it when they do: checks, and planted faults."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.product import (
    embed,
    multiply,
    multiply_by_experts,
    multiply_by_sorted_experts,
)
from mtplx.kernels.source import Maker
from tests.kernels.figures import random_rows
from tests.kernels.hosts import Watch, checked
from tests.kernels.matrices import MATRICES, Matrix
from tests.kernels.platforms import needs_linux
from tests.kernels.test_experts import COLUMNS, stacked
from tests.metal_host.static_check import check_static, lint

pytestmark = needs_linux
BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);  // "


def few(matrix: Matrix, maker: Maker) -> mx.array:
    return multiply(random_rows(3, 512), matrix.packed, maker=maker)


def many(matrix: Matrix, maker: Maker) -> mx.array:
    return multiply(random_rows(9, 512), matrix.packed, maker=maker)


def rows(matrix: Matrix, maker: Maker) -> mx.array:
    return embed(mx.array([2, 0]).astype(mx.uint32), matrix.packed, mx.float16, maker=maker)


def some_of_all(*fast: str) -> list[Any]:
    """All formats, those that are not named marked slow: their kernels take long to compile."""
    slow = pytest.mark.slow
    return [name if name in fast else pytest.param(name, marks=slow) for name in MATRICES]


SKELETONS: dict[str, Callable[[Matrix, Maker], mx.array]] = {
    "few rows": few,
    "many rows": many,
    "gather": rows,
}


@pytest.mark.parametrize("name", MATRICES)
def test_no_format_does_what_is_undefined(name: str) -> None:
    """No race, nothing out of bounds or uninitialised, no misaligned read."""
    few(MATRICES[name](9, 512), checked)


@pytest.mark.parametrize("name", some_of_all("Q4_0", "Q3_K"))
def test_no_skeleton_does_what_is_undefined(name: str) -> None:
    matrix = MATRICES[name](9, 512)
    many(matrix, checked)
    rows(matrix, checked)


def test_no_product_with_experts_does_what_is_undefined() -> None:
    together, _ = stacked("Q4_K")
    x = random_rows(4, COLUMNS)
    multiply_by_experts(x, together, mx.array([4, 0, 1, 1]).astype(mx.uint32), maker=checked)
    ranges = mx.array([[0, 1], [1, 1], [1, 3], [3, 3], [3, 4]]).astype(mx.uint32)
    multiply_by_sorted_experts(x, together, ranges, maker=checked)


@pytest.mark.parametrize("name", some_of_all("Q4_K", "IQ2_XS", "FP8 128 x 128"))
def test_metal_would_take_the_text(name: str) -> None:
    """Address spaces, and no words that Metal lacks."""
    watch = Watch()
    matrix = MATRICES[name](9, 512)
    for skeleton in SKELETONS.values():
        skeleton(matrix, watch)
    for result in watch.results:
        assert check_static(result.text) == []
        assert lint(result.text) == []


def test_metal_would_take_the_text_of_products_with_experts() -> None:
    together, _ = stacked("Q4_K")
    watch = Watch()
    multiply_by_experts(
        random_rows(1, COLUMNS), together, mx.zeros(8, mx.uint32), slots=8, maker=watch
    )
    multiply_by_sorted_experts(
        random_rows(9, COLUMNS), together, mx.zeros((5, 2), mx.uint32), maker=watch
    )
    for result in watch.results:
        assert check_static(result.text) == []
        assert lint(result.text) == []


@pytest.mark.parametrize(
    "rows_of_x", [1, 3, *(pytest.param(m, marks=pytest.mark.slow) for m in (2, 4, 5, 6, 7, 8))]
)
def test_weights_are_read_once_whatever_the_number_of_rows(rows_of_x: int) -> None:
    """Not a byte twice, and none that is not asked for."""
    matrix = MATRICES["Q4_K"](8, 512)
    assert fetched(matrix, rows_of_x) == matrix.num_bytes


@pytest.mark.parametrize("name", MATRICES)
def test_every_format_is_read_once(name: str) -> None:
    """Within 2 %: nor are scales, which several lanes share, read more than that."""
    matrix = MATRICES[name](8, 512)
    assert fetched(matrix, 3) <= 1.02 * matrix.num_bytes


def fetched(matrix: Matrix, count: int) -> int:
    watch = Watch(checked=True)
    multiply(random_rows(count, matrix.packed.shape[1]), matrix.packed, maker=watch)
    assert watch.results[0].findings == []
    sums = watch.results[0].fetched()
    return sums["w"] + sums["scales"] + sums["biases"]


# Faults: (format, skeleton, text, what it becomes). Each is one slip of the hand.
WRONG = {
    "nibbles in the wrong order": (
        "Q4_0",
        "few rows",
        "return 8 * part + 4 * (quad & 1) + 16 * (quad >> 1);",
        "return 16 * part + 4 * quad;",
    ),
    "wrong stride of blocks": ("Q4_K", "few rows", "bytes = 144", "bytes = 140"),
    "forgotten scale of the tensor": ("NVFP4 rows", "few rows", "SCALED ?", "false ?"),
    "forgotten scale of the tensor in a tile": ("NVFP4 rows", "many rows", "SCALED ?", "false ?"),
    "minimum with the wrong sign": ("Q4_K", "few rows", "-dmin", "dmin"),
    "high bits in the wrong place": ("Q6_K", "few rows", "high << 4 &", "high << 2 &"),
    "one of two shifts": ("IQ1_M", "few rows", "high & 128 ?", "high & 8 ?"),
    "the row before": ("Q8_0", "few rows", "W::decode(planes, row + r,", "W::decode(planes, row,"),
    "a tile that is not transposed": ("Q4_0", "many rows", "ulong2(0, 0), true)", "ulong2(0, 0))"),
    "the scale of another row": ("FP8 channel", "gather", "multiplier[row]", "multiplier[0]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_gives_wrong_numbers(case: str) -> None:
    """The products of test_product.py would be off by more than their bound, if a kernel were."""
    name, skeleton, old, new = WRONG[case]
    matrix = MATRICES[name](9, 512)
    right = np.array(SKELETONS[skeleton](matrix, Watch())).astype(np.float64)
    wrong = np.array(SKELETONS[skeleton](matrix, Watch(replace={old: new}))).astype(np.float64)
    assert not np.abs(wrong - right).max() <= 2e-3 * np.abs(right).max()


# Faults that may give right numbers, and what is said of them.
FOUND = {
    "tiles used before they are written": ("many rows", BARRIER + "tiles are written", "data race"),
    "tiles written while they are used": ("many rows", BARRIER + "tiles are read", "data race"),
    "sums used before they are written": (
        "many rows",
        BARRIER[2:] + "sums are written",
        "data race",
    ),
    "rows behind the last": ("many rows", "first + m < rows && ", "out-of-bounds read"),
    "columns behind the last": ("few rows", "if (row + r < end)", "out-of-bounds read"),
    "results behind the last": ("few rows", "lane == 0 && at < width", "data race"),
    "every lane writes": ("few rows", "lane == 0 && ", "data race"),
}
INSTEAD = {"if (row + r < end)": "if (true)", "lane == 0 && at < width": "lane == 0"}


@pytest.mark.parametrize("case", FOUND)
def test_a_fault_is_found(case: str) -> None:
    """In the checked build, whatever the numbers are."""
    skeleton, text, said = FOUND[case]
    watch = Watch(checked=True, replace={text: INSTEAD.get(text, "")})
    SKELETONS[skeleton](MATRICES["Q4_0"](9, 512), watch)
    assert any(said in finding for finding in watch.results[0].findings)


def test_a_kernel_that_reads_weights_per_row_is_seen() -> None:
    """The count of traffic is of what is executed: reads that are repeated count again."""
    matrix = MATRICES["Q4_0"](8, 512)
    again = "for (int m = 0; m < M; m++) {\n        W::decode(planes, row, index, part, w[0]);"
    watch = Watch(
        checked=True, replace={"for (int m = 0; m < M; m++) {\n        const": again + "const"}
    )
    multiply(random_rows(3, 512), matrix.packed, maker=watch)
    assert watch.results[0].fetched()["w"] > 1.5 * matrix.num_bytes
