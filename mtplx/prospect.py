"""What each depth is expected to bring in the next round, and which is the best."""

from collections.abc import Sequence
from dataclasses import dataclass

_MARGIN = 0.01  # by which drafting has to be faster than plain decoding


@dataclass(frozen=True, slots=True)
class Prospect:
    """What rounds are expected to bring now.

    tokens, times: of a head's draft of 0, 1, 2, ... tokens. reached: how likely all of it is
        accepted.
    rest_s: of 1, 2, ... rows, without drafting. step_s: of a token of the head. first_s: of its
        first one more.
    depth: the best of them. rate: its tokens per second.
    longest: the longest draft of the head that could pay if every token of it were sure.
    """

    tokens: Sequence[float]
    times: Sequence[float]
    reached: Sequence[float]
    rest_s: Sequence[float]
    step_s: float
    first_s: float
    depth: int
    rate: float
    longest: int

    @property
    def rival(self) -> int:
        """The best depth above 0."""
        return max(range(1, len(self.times)), key=lambda k: self.tokens[k] / self.times[k])

    def round_s(self, num_head: int, num_found: int) -> float:
        first_s = self.first_s if num_head else 0.0
        return self.rest_s[num_head + num_found] + num_head * self.step_s + first_s

    def least(self, position: int) -> float:
        """How likely the head's token has to be to be reached and accepted for its row to pay.

        Where a row is dear but those after it are not, they are looked at together.
        """
        rest_s, accepted = self.rest_s, self.reached
        least, tokens = 1.0, 0.0
        for last in range(position, len(accepted) - 1):
            tokens += accepted[last + 1] / accepted[position + 1]
            more_s = rest_s[last + 1] - rest_s[position] + (last - position) * self.step_s
            least = min(least, self.rate * more_s / tokens)
        return least


def prospect_of(
    tokens: Sequence[float],
    times: Sequence[float],
    accepted: Sequence[float],
    rest_s: Sequence[float],
    step_s: float,
    first_s: float,
) -> Prospect:
    """What these tokens and times come to."""
    rates = [num / taken_s for num, taken_s in zip(tokens, times, strict=True)]
    best = max(range(len(rates)), key=lambda k: rates[k])
    if rates[best] < (1 + _MARGIN) * rates[0]:
        best = 0
    longest = best
    while (
        longest < len(accepted)
        and rates[best] * (rest_s[longest + 1] - rest_s[longest] + step_s) < 1
    ):
        longest += 1
    reached = [1.0]
    for rate in accepted:
        reached.append(reached[-1] * rate)
    return Prospect(tokens, times, reached, rest_s, step_s, first_s, best, rates[best], longest)
