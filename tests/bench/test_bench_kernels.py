"""Kernels measured: the arms are right products, turns are fair, figures follow the clock."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx.bench.kernels import (
    COLUMNS,
    FORMATS,
    MLX,
    NUM_REPEATS,
    NUM_ROWS,
    OURS,
    kernel_table,
    make_arms,
    matrices,
    measure_format,
)
from tests.bench.clock import Clock
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux

SMALL = 4 * COLUMNS  # bytes: a few rows
CEILING = 100e9
OF_BOTH = [
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q8_0",
    "NVFP4 rows",
    "MXFP4 rows",
    "MXFP8 rows",
    *(f"affine {bits} bit" for bits in (2, 3, 4, 5, 6, 8)),
]


def test_every_format_has_a_matrix_of_the_size_that_is_asked_for() -> None:
    """All its planes together."""
    for name, matrix in matrices(1 << 20):
        assert matrix.num_bytes == pytest.approx(1 << 20, rel=0.02), name


def test_formats_that_mlx_reads_are_compared_with_it() -> None:
    assert [name for name, matrix in matrices(SMALL) if matrix.theirs is not None] == OF_BOTH


@needs_linux
@pytest.mark.parametrize(
    "name",
    [
        "affine 4 bit",
        *(pytest.param(n, marks=pytest.mark.slow) for n in OF_BOTH if n != "affine 4 bit"),
    ],
)
def test_both_arms_make_the_same_product(name: str) -> None:
    """Ours by the emulator, MLX's on the CPU, which adds up in half precision."""
    products: dict[tuple[str, int], np.ndarray] = {}
    for arm in make_arms(FORMATS[name](SMALL), fast):
        product = arm.run()
        assert isinstance(product, mx.array)
        products[arm.kernel, arm.num_rows] = np.array(product.astype(mx.float32))
    for num_rows in NUM_ROWS:
        ours, theirs = products[OURS, num_rows], products[MLX, num_rows]
        assert ours.shape[0] == num_rows
        assert np.abs(ours - theirs).max() < 5e-2 * np.abs(ours).max()


def test_speed_is_bytes_over_the_median_time() -> None:
    """The first call of each arm, which compiles it, is left out."""
    matrix = FORMATS["Q5_0"](SMALL)
    arms = len(NUM_ROWS)
    clock = Clock(lambda call: 100.0 if call <= arms else matrix.num_bytes / 50e9)
    rows = measure_format("Q5_0", matrix, CEILING, clock)
    assert [(row.kernel, row.num_rows) for row in rows] == [(OURS, n) for n in NUM_ROWS]
    for row in rows:
        assert row.gb_per_s.median == pytest.approx(50.0)
        assert row.share_of_ceiling == pytest.approx(0.5)
    assert len(clock.calls) == arms * (1 + NUM_REPEATS)


def test_arms_take_turns() -> None:
    """Each once in every repeat, not always in the same order."""
    clock = Clock(lambda _: 1.0)
    measure_format("affine 4 bit", FORMATS["affine 4 bit"](SMALL), CEILING, clock)
    arms = 2 * len(NUM_ROWS)
    turns = [clock.calls[i : i + arms] for i in range(arms, len(clock.calls), arms)]
    assert all(sorted(turn) == sorted(clock.calls[:arms]) for turn in turns)
    assert len({tuple(turn) for turn in turns}) > NUM_REPEATS // 2


def test_one_slow_repeat_changes_no_figure() -> None:
    matrix = FORMATS["Q6_K"](SMALL)
    arms = len(NUM_ROWS)
    slow = range(arms * 3, arms * 4)
    clock = Clock(lambda call: matrix.num_bytes / (1e9 if call in slow else 80e9))
    rows = measure_format("Q6_K", matrix, CEILING, clock)
    assert all(row.gb_per_s.median == pytest.approx(80.0) for row in rows)


def test_the_table_has_a_line_for_each_kernel() -> None:
    matrix = FORMATS["affine 8 bit"](SMALL)
    clock = Clock(lambda _: matrix.num_bytes / 25e9)
    rows = measure_format("affine 8 bit", matrix, CEILING, clock)
    table = kernel_table("format", rows, "GB/s")
    assert table.columns == ("format", "kernel", "1 row", "2 rows", "4 rows", "8 rows")
    cells = ("25 25%",) * 4
    assert table.rows == (("affine 8 bit", OURS, *cells), ("affine 8 bit", MLX, *cells))
