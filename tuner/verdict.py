"""What the measurements allow to be said, and whether a profile is worth saving.

Saving is decided once for all cells, and so strictly that equal arms lead to it in at most one of a
hundred runs: either all confirming pairs together, or those of one cell, corrected for the number
of cells, have to be out of reach of chance. Only then each cell is decided by itself, where a slip
costs no more than a few per cent of speed in that cell.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtplx.profile import Choice, Interval
from mtplx.tuner.confirm import MIN_PAIRS, Pair, ratios
from mtplx.tuner.search import MIN_EFFECT
from mtplx.tuner.statistics import chance_of_mean, interval
from mtplx.tuner.trial import CONFIRM, SEARCH, Cell, Trial

MAX_CHANCE = 0.005  # each, of two ways to be misled
MAX_GAP = 0.05  # between the tuner's plain decoding and the product's
MAX_DRIFT = 0.05  # of plain decoding between the first half of a run and the second


@dataclass(frozen=True, slots=True)
class Verdict:
    """wins: whether drafting is faster anywhere, beyond chance. ratio: all pairs together.

    gap: the tuner's plain speed over the product's, where they differ; then nothing is believed.
    drift: late over early plain speed, where it moved: speeds are then not comparable, ratios of
    pairs still are.
    """

    choices: tuple[Choice, ...]
    wins: bool
    ratio: Interval | None
    chance: float
    gap: Interval | None
    drift: Interval | None

    @property
    def saves(self) -> bool:
        """Whether a profile is to be written."""
        return self.wins and self.gap is None


def decide(
    depths: Mapping[Cell, int],
    pairs: Mapping[Cell, Sequence[Pair]],
    checks: Sequence[Pair],
    drift: Interval | None,
) -> Verdict:
    """depths: what promised most in every cell, 0 for plain decoding, which needs no pairs."""
    every = [pair for found in pairs.values() for pair in found]
    overall = interval(ratios(every)) if every else None
    together = chance_of_mean([pair.log_ratio for pair in every])
    apart = [len(pairs) * chance_of_mean([p.log_ratio for p in found]) for found in pairs.values()]
    significant = together <= MAX_CHANCE or min(apart, default=1.0) <= MAX_CHANCE
    choices = tuple(
        _choice(cell, depth, pairs.get(cell, ()), significant) for cell, depth in depths.items()
    )
    wins = significant and any(choice.depth for choice in choices)
    chance = min([together, *apart])
    return Verdict(choices, wins, overall, min(chance, 1.0), _gap(checks), drift)


def _choice(cell: Cell, tried: int, pairs: Sequence[Pair], significant: bool) -> Choice:
    if not tried:
        why = f"no depth promised {MIN_EFFECT:.0%} more than plain decoding"
        return Choice(cell.kind, cell.context, 0, 0, None, None, None, why)
    if not pairs:
        why = f"depth {tried} promised most, but there was no time to confirm it"
        return Choice(cell.kind, cell.context, 0, tried, None, None, None, why)
    ratio = interval(ratios(pairs))
    wins = significant and ratio.median >= 1 + MIN_EFFECT and ratio.low > 1
    plain = interval([pair.base.sample.tokens_per_s for pair in pairs])
    drafted = interval([pair.other.sample.tokens_per_s for pair in pairs])
    why = _reason(tried, ratio, wins)
    return Choice(cell.kind, cell.context, tried if wins else 0, tried, ratio, plain, drafted, why)


def _reason(tried: int, ratio: Interval, wins: bool) -> str:
    measured = f"{ratio.median:.2f} times plain ({ratio.low:.2f} to {ratio.high:.2f})"
    if wins:
        return f"depth {tried} is {measured}"
    if ratio.high < 1:
        return f"depth {tried} promised most, but is slower: {measured}"
    return f"no difference: depth {tried} is {measured}"


def _gap(checks: Sequence[Pair]) -> Interval | None:
    """The plain arm's speed over the product's, where they do not agree."""
    if not checks:
        return None
    found = interval(ratios(checks))
    agrees = found.low <= 1 <= found.high or abs(found.median - 1) <= MAX_GAP
    return None if agrees else found


def drift_of(trials: Sequence[Trial]) -> Interval | None:
    """Plain speed in the second half of these trials over the first, where it moved beyond noise.

    Each cell is compared with itself; None where nothing moved or nothing can be told.
    """
    plain = sorted(
        (t for t in trials if t.depth == 0 and t.stage in (SEARCH, CONFIRM)), key=lambda t: t.at_s
    )
    half = len(plain) // 2
    relative = []
    for cell in {trial.cell for trial in plain}:
        early, late = (
            [t.sample.tokens_per_s for t in part if t.cell == cell]
            for part in (plain[:half], plain[half:])
        )
        if early:
            relative += [speed / statistics.median(early) for speed in late]
    if len(relative) < MIN_PAIRS:
        return None
    found = interval(relative)
    stands = found.low <= 1 <= found.high or abs(found.median - 1) <= MAX_DRIFT
    return None if stands else found
