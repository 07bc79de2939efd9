"""What a round costs by rows and context, and what to expect before anything was measured.

The tuner measures both and writes them to a profile; the depth of a request is chosen by them. All
times are seconds of wall time. A curve that only has the right proportions serves as well, since
choosing a depth takes no more: the shipped ones are in passes of one row.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtplx.errors import UsageError


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a round's parts, measured at some contexts and numbers of rows.

    contexts: [C] tokens in the caches, ascending.
    verify_s: [C][D + 1], all that a round of 1, 2, … D + 1 rows takes but its draft: the target
        pass, the law, and what comes with them. The first is a round of plain decoding.
    draft_s: [C], of a token that the head drafts.
    fixed_s: once a round, whatever its rows.

    Raises UsageError for what is no curve, naming the field.
    """

    contexts: tuple[int, ...]
    verify_s: tuple[tuple[float, ...], ...]
    draft_s: tuple[float, ...]
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.contexts)
        if count == 0 or list(self.contexts) != sorted(set(self.contexts)):
            raise _wrong("contexts", self.contexts, "one number or more, ascending")
        if len(self.verify_s) != count or len({len(row) for row in self.verify_s}) != 1:
            raise _wrong("verify_s", self.verify_s, f"{count} rows of the same length")
        if not self.verify_s[0] or not all(_is_time(s) and s > 0 for s in sum(self.verify_s, ())):
            raise _wrong("verify_s", self.verify_s, "seconds above 0")
        if len(self.draft_s) != count or not all(map(_is_time, self.draft_s)):
            raise _wrong("draft_s", self.draft_s, f"{count} times of 0 s or more")
        if not _is_time(self.fixed_s):
            raise _wrong("fixed_s", self.fixed_s, "0 s or more")

    @property
    def max_depth(self) -> int:
        """The deepest draft whose verification was measured."""
        return len(self.verify_s[0]) - 1

    def verify_at(self, num_rows: int, context: int) -> float:
        """Seconds of a round of so many rows, but for its draft and what is fixed.

        Straight lines between what was measured. Beyond the last context, and beyond the last
        number of rows, the last line goes on; before the first context the first value holds.
        """
        return self._between([_row(times, num_rows) for times in self.verify_s], context)

    def draft_at(self, context: int) -> float:
        """Seconds of a token that the head drafts."""
        return self._between(self.draft_s, context)

    def round_s(self, num_drafted: int, context: int, num_found: int = 0) -> float:
        """Seconds of a round with so many tokens of the head, and so many found, which are free."""
        rows = 1 + num_drafted + num_found
        drafts_s = num_drafted * self.draft_at(context)
        return self.verify_at(rows, context) + drafts_s + self.fixed_s

    def _between(self, values: Sequence[float], context: int) -> float:
        return _line(self.contexts, values, max(context, self.contexts[0]))


Priors = Mapping[str, tuple[float, ...]]
"""By class of content, and "" for any: how likely a drafted token is accepted where those before it
were, by its place in the draft."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a profile knows of a model on a machine.

    name: of the profile, as it is shown. window: tokens that the head looks back over where nobody
        says otherwise, None for all.
    """

    curve: CostCurve
    priors: Priors
    name: str
    window: int | None = None


def expected_tokens(rates: Sequence[float], num_drafted: int) -> float:
    """Tokens per round of a draft of that length, the recovered or bonus token included."""
    reached, tokens = 1.0, 1.0
    for rate in rates[:num_drafted]:
        reached *= rate
        tokens += reached
    return tokens


def expected_experts(num_experts: int, num_chosen: int, num_rows: int) -> float:
    """How many different experts so many rows are expected to ask for in a layer.

    Each row asks for `num_chosen` of them, as if by chance: real rows agree more often, so this is
    the most that is to be expected.
    """
    return num_experts * (1 - (1 - num_chosen / num_experts) ** num_rows)


def _row(times: Sequence[float], num_rows: int) -> float:
    return _line(range(1, len(times) + 1), times, num_rows)


def _line(at: Sequence[int], values: Sequence[float], x: float) -> float:
    """The value at x of straight lines through the points; the last one goes on, but not down."""
    if len(at) == 1:
        return values[0]
    right = min(max(bisect_right(at, x), 1), len(at) - 1)
    slope = (values[right] - values[right - 1]) / (at[right] - at[right - 1])
    if x > at[-1]:
        return values[-1] + max(slope, 0.0) * (x - at[-1])
    return values[right - 1] + slope * (x - at[right - 1])


def _is_time(value: float) -> bool:
    return 0 <= value < float("inf")


def _wrong(name: str, value: object, allowed: str) -> UsageError:
    return UsageError(f"The cost curve's {name} is {value!r}, but must be {allowed}.")
