"""The speed of each depth in a cell, with the interval that the replies leave it in."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from mtplx.profile import Interval
from mtplx.tuner.search import expected_speeds
from mtplx.tuner.statistics import LEVEL
from mtplx.tuner.trial import Trial

NUM_RESAMPLES = 300


def speed_intervals(trials: Sequence[Trial]) -> dict[int, Interval]:
    """Tokens per second of each depth among the trials of a cell.

    Replies are drawn again with replacement, and rounds are timed again with the noise that they
    had: an arm of two replies has no noise of its own to be seen, so all arms share theirs.
    """
    rng = np.random.default_rng(len(trials))
    by_depth: dict[int, list[Trial]] = {}
    for trial in trials:
        by_depth.setdefault(trial.depth, []).append(trial)
    noise = _noise(list(by_depth.values()))
    found: dict[int, list[float]] = {depth: [] for depth in by_depth}
    for _ in range(NUM_RESAMPLES):
        picked = [
            arm[i] for arm in by_depth.values() for i in rng.integers(len(arm), size=len(arm))
        ]
        for depth, speed in expected_speeds(picked).items():
            spread = noise / math.sqrt(len(by_depth[depth]))
            found[depth].append(speed * math.exp(rng.normal(0, spread)))
    edge = (1 - LEVEL) / 2
    middle = expected_speeds(trials)
    return {
        depth: Interval(
            middle[depth], *(float(x) for x in np.quantile(found[depth], [edge, 1 - edge]))
        )
        for depth in sorted(by_depth)
    }


def _noise(arms: Sequence[Sequence[Trial]]) -> float:
    """The standard deviation of the logarithm of a round's time within an arm."""
    squares, freedom = 0.0, 0
    for arm in arms:
        logs = [math.log(t.sample.decode_s / t.sample.num_rounds) for t in arm]
        mean = statistics.fmean(logs)
        squares += sum((x - mean) ** 2 for x in logs)
        freedom += len(arm) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0
