"""How long rounds take here and now: a cost curve, put right by the rounds that were timed.

Depths are compared by the ratio of their times, and rounds of different depths are timed at
different moments, between which a machine gets faster or slower. So each time is taken relative to
the present level, which is that of the last rounds of any kind; what is left belongs to its number
of rows. Medians see to it that a compiled kernel, a page fault or another process changes nothing.
"""

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from statistics import median

from mtplx.costs import CostCurve

_LEVEL = 5  # rounds that tell the present level: few, so that it moves before a correction does
_MEMORY = 11  # of each number of rows, the last so many
_DOUBT = 3  # of a curve that was measured here: it counts like so many rounds of each kind
_ENOUGH = 3  # times of a kind that can outvote one another
_FEW = _ENOUGH + 1  # with the first, which is not counted
_LONGEST_WAIT = 256  # rounds until one of a kind is timed again
_STEEPEST = 0.1  # a row, of what is taken to go on
_NEAR = 32  # tokens of context that make no difference
_LEAST_S = 1e-9
_LEAST_STEP = 0.2  # of the mean step of a draft, that a later one takes


@dataclass(frozen=True, slots=True)
class RoundTime:
    """One round that was timed.

    context: tokens before it. num_rows: passed through the target. num_steps: of the head.
    draft_s: until the draft was there. rest_s: from there to the end.
    """

    context: int
    num_rows: int
    num_steps: int
    draft_s: float
    rest_s: float


class Pace:
    """The times of one model's rounds, as far as they are known.

    curve: where they begin. is_tuned: it was measured on this machine, so it is not given up for
        a few rounds that took otherwise.
    """

    def __init__(self, curve: CostCurve, *, is_tuned: bool = False) -> None:
        self.curve = curve
        self._level: deque[float] = deque(maxlen=_LEVEL)  # logarithms of taken over expected
        self._by_rows: dict[int, _Correction] = {}
        self._first_step, self._more_steps = _Correction(is_tuned), _Correction(is_tuned)
        self._is_tuned = is_tuned
        self._at = (0, 0)  # context and rows of
        self._base: list[float] = []  # the curve's times there
        self._factors: list[float] = []  # of those, by rows; empty when a round was timed
        self._num_timed = 0
        self._last: dict[int, int] = {}  # rows -> the round that was last timed with so many

    def learn(self, time: RoundTime) -> None:
        """Take in what a round took."""
        rows, curve = time.num_rows, self.curve
        self._factors = []
        self._num_timed += 1
        self._last[rows] = self._num_timed
        correction = self._by_rows.setdefault(rows, _Correction(self._is_tuned))
        taken = _log_ratio(time.rest_s, curve.verify_at(rows, time.context) + curve.fixed_s)
        if correction.num_seen > 0 or not self._level:
            self._level.append(taken - self._offset(rows))
        level = median(self._level)
        correction.learn(taken - level)
        if time.num_steps:
            self._learn_draft(time, level)

    def _learn_draft(self, time: RoundTime, level: float) -> None:
        """The first step also feeds the head what it has not seen: it is told from others."""
        curve_s, step_s = self.curve.draft_at(time.context), time.draft_s / time.num_steps
        if time.num_steps == 1:
            self._first_step.learn(_log_ratio(step_s, curve_s) - level)
            return
        if self._first_step.num_seen > 1:
            more_s = time.draft_s - math.exp(level + self._first_step.value) * curve_s
            step_s = max(more_s / (time.num_steps - 1), _LEAST_STEP * step_s)
        self._more_steps.learn(_log_ratio(step_s, curve_s) - level)

    def is_due(self, num_rows: int) -> bool:
        """Whether such a round should be timed again; the more were, the less often."""
        wait = min(2 << self._num_seen(num_rows), _LONGEST_WAIT)
        if self._is_tuned:
            wait = _LONGEST_WAIT
        return self._num_timed - self._last.get(num_rows, 0) >= wait

    @property
    def is_new(self) -> bool:
        """Whether plain rounds have hardly been timed, and the curve is another machine's."""
        return not self._is_tuned and self._num_seen(1) < _FEW

    def _num_seen(self, num_rows: int) -> int:
        return self._by_rows[num_rows].num_seen if num_rows in self._by_rows else 0

    def rest_s(self, context: int, num_rows: int) -> list[float]:
        """Seconds that rounds of 1, 2, ... rows would take now, without drafting.

        In the curve's units while no round was timed.
        """
        context = max(context - context % _NEAR, 1)
        if (context, num_rows) != self._at:
            fixed_s, verify_at = self.curve.fixed_s, self.curve.verify_at
            self._base = [verify_at(rows, context) + fixed_s for rows in range(1, num_rows + 1)]
            self._at = (context, num_rows)
        if len(self._factors) != num_rows:
            now = self._now
            self._factors = [math.exp(now + self._offset(i)) for i in range(1, num_rows + 1)]
        return [time_s * factor for time_s, factor in zip(self._base, self._factors, strict=True)]

    def step_s(self, context: int) -> float:
        """Seconds that the head would take now for a token more."""
        seen = self._more_steps if self._more_steps.num_seen > 1 else self._first_step
        return math.exp(self._now + seen.value) * self.curve.draft_at(context)

    def first_s(self, context: int) -> float:
        """Seconds that its first token would take more than that."""
        if min(self._first_step.num_seen, self._more_steps.num_seen) < 2:
            return 0.0
        first_s = math.exp(self._now + self._first_step.value) * self.curve.draft_at(context)
        return max(first_s - self.step_s(context), 0.0)

    @property
    def _now(self) -> float:
        return median(self._level) if self._level else 0.0

    def _offset(self, num_rows: int) -> float:
        """What was learnt of so many rows, or of those nearest to them."""
        known = sorted(rows for rows, correction in self._by_rows.items() if correction.is_known)
        if not known:
            return 0.0
        right = bisect_left(known, num_rows)
        above = known[min(right, len(known) - 1)]
        below = known[max(right - 1, 0)] if above != num_rows else above
        low, high = self._by_rows[below].value, self._by_rows[above].value
        if below < above:
            return low + (high - low) * (num_rows - below) / (above - below)
        if num_rows <= above or len(known) < 2:
            return high
        # What is not known goes on half as much as what is, and not far.
        slope = (high - self._by_rows[known[0]].value) / (above - known[0]) / 2
        return high + min(max(slope, -_STEEPEST), _STEEPEST) * (num_rows - above)


class Paces:
    """What was learnt in this process of the speed of one model, whoever used it."""

    def __init__(self) -> None:
        self._pace: Pace | None = None

    def of(self, curve: CostCurve, *, is_tuned: bool) -> Pace:
        """The pace that began with this curve."""
        if self._pace is None or self._pace.curve != curve:
            self._pace = Pace(curve, is_tuned=is_tuned)
        return self._pace


class _Correction:
    """The logarithm of a factor: the median of the last times, the first one left out.

    The first pass of a kind compiles kernels and touches memory that no later one does.
    """

    def __init__(self, is_doubted: bool) -> None:
        self._seen: deque[float] = deque(maxlen=_MEMORY)
        self._doubt = [0.0] * (_DOUBT if is_doubted else 0)
        self.num_seen = 0
        self.value = 0.0

    @property
    def is_known(self) -> bool:
        return len(self._seen) >= _ENOUGH

    def learn(self, log_ratio: float) -> None:
        self.num_seen += 1
        if self.num_seen > 1:
            self._seen.append(log_ratio)
            self.value = median([*self._seen, *self._doubt])


def _log_ratio(taken_s: float, expected_s: float) -> float:
    return math.log(max(taken_s, _LEAST_S) / max(expected_s, _LEAST_S))
