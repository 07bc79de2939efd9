"""What of a difference is the arm's, and what is noise: medians, bootstrap intervals, chance."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from mtplx.profile import Interval

NUM_RESAMPLES = 2000
LEVEL = 0.9  # of the intervals that are shown


def interval(values: Sequence[float], level: float = LEVEL, seed: int = 0) -> Interval:
    """The median of values and its bootstrap percentile interval (Efron 1979).

    One value, or none that differ, is an interval without width.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("there is no median of nothing")
    picks = np.random.default_rng([seed, sample.size]).integers(
        sample.size, size=(NUM_RESAMPLES, sample.size)
    )
    medians = np.median(sample[picks], axis=1)
    edge = (1 - level) / 2
    low, high = np.quantile(medians, [edge, 1 - edge])
    return Interval(float(np.median(sample)), float(low), float(high))


def chance_of_mean(values: Sequence[float]) -> float:
    """How likely a mean this far above 0 is where the values are noise around 0.

    One-sided Student t test; 1 for fewer than two values, which say nothing of their noise.
    """
    if len(values) < 2:
        return 1.0
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    if spread == 0:
        return 0.0 if mean > 0 else 1.0
    return _tail(mean / (spread / math.sqrt(len(values))), len(values) - 1)


def _tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's distribution with a whole number of degrees of freedom.

    The finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for j in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (j + 1) / (j + 2)
    inner = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return min(max((1 - inner) / 2, 0.0), 1.0)
