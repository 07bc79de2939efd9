"""Intervals and chances against scipy and by simulation."""

import numpy as np
import pytest
from scipy import stats

from mtplx.tuner.statistics import chance_of_mean, interval


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 12, 48, 49])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3, 2.0])
def test_the_chance_of_a_mean_is_students(count: int, shift: float) -> None:
    """The finite sums agree with scipy's one-sided test."""
    values = np.random.default_rng(count).normal(size=count) + shift
    expected = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert chance_of_mean(values.tolist()) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_values_without_noise_leave_nothing_to_chance() -> None:
    """Above zero they are certain; at it they say nothing, and neither does one value."""
    assert chance_of_mean([0.1, 0.1, 0.1]) == 0.0
    assert chance_of_mean([0.0, 0.0]) == 1.0
    assert chance_of_mean([5.0]) == 1.0


def test_an_interval_mostly_holds_the_true_median() -> None:
    """Of 400 samples of 12, nine in ten hold it, as far as a bootstrap of so few goes."""
    rng = np.random.default_rng(1)
    found = [interval(rng.normal(size=12).tolist()) for _ in range(400)]
    assert 0.82 <= np.mean([i.low <= 0 <= i.high for i in found]) <= 0.97


def test_an_interval_is_the_same_each_time() -> None:
    """Its resamples are drawn by a seed, so a profile can be checked."""
    assert interval([1.0, 2.0, 5.0]) == interval([1.0, 2.0, 5.0])
    assert interval([3.0]).low == interval([3.0]).high == 3.0
