"""Records to rows: medians over rounds with their spread, and what of a difference is noise."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.bench.arms import OFF, Arm, Case
from mtplx.bench.measure import Record

MIN_ROUNDS = 5  # fewer cannot tell a difference from chance
FASTER, SLOWER = "faster", "slower"
NO_DIFFERENCE, TOO_FEW = "no difference", "too few rounds"


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over rounds, and the 20th and 80th percentile."""

    median: float
    p20: float
    p80: float


@dataclass(frozen=True, slots=True)
class Row:
    """One class of prompts, one arm.

    ratio_vs_off: the median of the ratios within each round, both sides of a ratio being measured
        next to each other.
    verdict: what the ratio allows to be said: "faster", "slower", "no difference" or
        "too few rounds"; "" for the arm that all others are compared with.
    acceptance_length: tokens per round; None for mlx-lm.
    same_tokens_as_off: share of prompts that got the same token ids in every round; None where
        tokens are drawn at random.
    """

    kind: str
    arm: str
    depth: int | None
    tokens_per_s: Spread
    ratio_vs_off: Spread
    verdict: str
    acceptance_length: float | None
    acceptance_per_position: tuple[float, ...]
    prefill_tokens_per_s: float
    num_tokens: int
    same_tokens_as_off: float | None

    def to_json(self) -> dict[str, object]:
        """Plain values, `kind` under the name "class"."""
        return {
            "class": self.kind,
            "arm": self.arm,
            "depth": self.depth,
            **_named("tokens_per_s", self.tokens_per_s),
            **_named("ratio_vs_off", self.ratio_vs_off),
            "verdict": self.verdict,
            "acceptance_length": self.acceptance_length,
            "acceptance_per_position": list(self.acceptance_per_position),
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "num_tokens": self.num_tokens,
            "same_tokens_as_off": self.same_tokens_as_off,
        }


def _named(name: str, spread: Spread) -> dict[str, float]:
    return {name: spread.median, f"{name}_p20": spread.p20, f"{name}_p80": spread.p80}


def spread(values: Sequence[float]) -> Spread:
    """Median, p20 and p80 of at least one value, between the two nearest where need be."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return Spread(statistics.median(values), fifths[0], fifths[3])


def verdict(ratios: Sequence[float]) -> str:
    """What ratios of paired rounds allow to be said.

    A difference needs 1 outside the spread p20 to p80, and rounds that agree on its direction so
    far that chance alone would bring it about in at most one of 16 such measurements (two-sided
    sign test): all of 5 to 8 rounds, all but one of 9.
    """
    if len(ratios) < MIN_ROUNDS:
        return TOO_FEW
    middle = spread(ratios)
    num_above, num_below = sum(r > 1 for r in ratios), sum(r < 1 for r in ratios)
    if _chance(max(num_above, num_below), len(ratios)) > 1 / 16:
        return NO_DIFFERENCE
    if middle.p20 > 1:
        return FASTER
    return SLOWER if middle.p80 < 1 else NO_DIFFERENCE


def _chance(num_agreeing: int, num_rounds: int) -> float:
    """That at least so many rounds of fair coins fall on one side, whichever it is."""
    tail = sum(math.comb(num_rounds, k) for k in range(num_agreeing, num_rounds + 1))
    return min(1.0, tail * 2.0 ** (1 - num_rounds))


def make_rows(
    records: Sequence[Record], arms: Sequence[Arm], *, same_tokens_expected: bool
) -> list[Row]:
    """A row for each class and arm, from `measure`'s records. One of the arms is plain decoding."""
    rows = []
    for kind in dict.fromkeys(record.case.kind for record in records):
        for arm in arms:
            own, off = (
                [r for r in records if r.case.kind == kind and r.label == label]
                for label in (arm.label, OFF)
            )
            rows.append(_row(kind, arm, own, off, same_tokens_expected))
    return rows


def _row(
    kind: str, arm: Arm, own: Sequence[Record], off: Sequence[Record], same_tokens_expected: bool
) -> Row:
    speeds = _speeds(own)
    ratios = [speed / base for speed, base in zip(speeds, _speeds(off), strict=True)]
    prefilled = sum(len(record.case.token_ids) - 1 for record in own)
    prefill_s = sum(record.sample.prefill_s for record in own)
    num_tokens = sum(len(record.sample.token_ids) for record in own)
    num_rounds = sum(record.sample.num_rounds for record in own)
    return Row(
        kind=kind,
        arm=arm.name,
        depth=arm.depth,
        tokens_per_s=spread(speeds),
        ratio_vs_off=spread(ratios),
        verdict="" if arm.name == OFF else verdict(ratios),
        acceptance_length=num_tokens / num_rounds if num_rounds else None,
        acceptance_per_position=_acceptance_per_position(own),
        prefill_tokens_per_s=prefilled / prefill_s if prefill_s > 0 else 0.0,
        num_tokens=num_tokens,
        same_tokens_as_off=_share_equal(own, off) if same_tokens_expected else None,
    )


def _speeds(records: Sequence[Record]) -> list[float]:
    """Tokens per second of each round, all its prompts together."""
    tokens: defaultdict[int, int] = defaultdict(int)
    seconds: defaultdict[int, float] = defaultdict(float)
    for record in records:
        tokens[record.round_index] += len(record.sample.token_ids)
        seconds[record.round_index] += record.sample.decode_s
    return [tokens[i] / seconds[i] for i in sorted(tokens)]


def _acceptance_per_position(records: Sequence[Record]) -> tuple[float, ...]:
    """Share of drafted tokens accepted, by place; one behind a rejected one is not accepted."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for record in records:
        drafted.update(dict(enumerate(record.sample.drafted)))
        accepted.update(dict(enumerate(record.sample.accepted)))
    return tuple(accepted[place] / drafted[place] for place in sorted(drafted))


def _share_equal(own: Sequence[Record], off: Sequence[Record]) -> float:
    """The share of prompts whose tokens are plain decoding's in every round."""
    equal: dict[Case, bool] = {}
    for mine, plain in zip(own, off, strict=True):  # both in the order of rounds and prompts
        assert mine.case == plain.case
        same = mine.sample.token_ids == plain.sample.token_ids
        equal[mine.case] = equal.get(mine.case, True) and same
    return sum(equal.values()) / len(equal)
