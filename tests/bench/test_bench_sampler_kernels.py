"""Steps of choosing a token measured: both arms do the same, and figures follow the clock."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx.bench.kernels import MLX, NUM_REPEATS, OURS, Arm
from mtplx.bench.sampler_kernels import (
    NUM_BEST,
    NUM_ROWS,
    STEPS,
    VOCABULARY,
    make_arms,
    measure_step,
    steps,
)
from mtplx.kernels.source import Maker, metal
from tests.bench.clock import Clock
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux

WIDTH = 8192 + 700  # more than a threadgroup takes
CEILING = 100e9
MAKERS = [
    pytest.param(fast, id="host", marks=needs_linux),
    pytest.param(metal, id="gpu", marks=pytest.mark.metal),
]


def results(arm: Arm) -> list[mx.array]:
    found = arm.run()
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", STEPS)
def test_both_arms_do_the_same(name: str, maker: Maker) -> None:
    """The same probabilities, the same best scores, the same tokens by the same random numbers."""
    cases = [STEPS[name](num_rows, WIDTH, 1) for num_rows in NUM_ROWS]
    arms = {(arm.kernel, arm.num_rows): arm for arm in make_arms(cases, maker)}
    assert len(arms) == 2 * len(NUM_ROWS)
    for num_rows in NUM_ROWS:
        ours, theirs = (results(arms[kernel, num_rows])[0] for kernel in (OURS, MLX))
        assert ours.shape[0] == num_rows
        found, expected = (np.array(x.astype(mx.float32)) for x in (ours, theirs))
        if name.startswith("best"):  # in any order
            found, expected = np.sort(found), np.sort(expected)
        np.testing.assert_allclose(found, expected, rtol=5e-5)


def test_a_turn_reads_what_is_asked_for() -> None:
    """Each time other rows, of a vocabulary of this size, and as many as it says."""
    for name, cases in steps(WIDTH, 1 << 20):
        assert [case.num_rows for case in cases] == list(NUM_ROWS), name
        for case in cases:
            assert case.num_bytes * len(case.inputs) == pytest.approx(1 << 20, rel=0.3), name
            assert {array.shape[-1] for taken in case.inputs for array in taken} == {WIDTH}
            for first, second in zip(*case.inputs[:2], strict=True):
                assert not mx.array_equal(first, second).item(), name


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [("softmax", 2 + 4), (f"best {NUM_BEST}", 2), ("residual and draw", 4 + 4)],
)
def test_bytes_are_those_that_nobody_can_do_without(name: str, num_bytes: int) -> None:
    """Of each column: scores in float16 and probabilities in float32, once."""
    case = STEPS[name](4, VOCABULARY, 1)
    assert case.num_bytes == pytest.approx(num_bytes * 4 * VOCABULARY, rel=0.01)


def test_speed_is_bytes_over_the_median_time() -> None:
    """Of all times of a turn; the first turn, which compiles, is left out."""
    cases = [STEPS["softmax"](num_rows, WIDTH, 1 << 20) for num_rows in NUM_ROWS]
    num_bytes = {case.num_rows: case.num_bytes * len(case.inputs) for case in cases}
    arms = 2 * len(NUM_ROWS)
    clock = Clock(lambda call: 100.0 if call <= arms else 1e-3)
    rows = measure_step("softmax", cases, CEILING, clock)
    assert len(clock.calls) == arms * (1 + NUM_REPEATS)
    assert [(r.name, r.kernel, r.num_rows) for r in rows] == [
        ("softmax", kernel, num_rows) for num_rows in NUM_ROWS for kernel in (OURS, MLX)
    ]
    for row in rows:
        assert row.gb_per_s.median == pytest.approx(num_bytes[row.num_rows] / 1e6)
        assert row.share_of_ceiling == pytest.approx(num_bytes[row.num_rows] / 1e-3 / CEILING)


@pytest.mark.metal
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_measured_on_a_gpu(name: str) -> None:
    """By the machine's clock, with the vocabulary and the rows of the real measurement."""
    cases = [STEPS[name](num_rows, VOCABULARY, 1 << 22) for num_rows in NUM_ROWS]
    rows = measure_step(name, cases, CEILING)
    assert len(rows) == 2 * len(NUM_ROWS)
    assert all(0 < row.gb_per_s.p20 <= row.gb_per_s.p80 < 1e5 for row in rows)
