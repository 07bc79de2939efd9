"""Whether the head or an earlier passage should draft: by what each is expected to bring.

Of the head it is counted how many of its tokens were accepted, per position. Of a passage that
recurs it is counted how far the text went on like the earlier one, whether that was drafted or not:
a token that is drafted from it is accepted exactly as often as the target would choose it anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.lookup import MIN_MATCH, Continuation

# In accepted tokens. They are constants, since a choice by the clock would make a seed give
# another text each time.
_STEP_COST = 0.08  # of a token that the head drafts, which is a pass through the head
_ROW_COST = 0.1  # of a row more to verify, where plain decoding is the alternative
_LONG_MATCHES = (5, 8, 16)  # recurrences are told apart by their length: up to these, and above
_EXPECTED = (0.35, 0.5, 0.65, 0.8)  # of those, how often the next token recurs too, at first


@dataclass(slots=True)
class Rate:
    """A share that is being learnt: at first as `expected`, later that of about 64 outcomes."""

    expected: float
    hits: float = 0.0
    num: float = 0.0

    def learn(self, hit: bool) -> None:
        self.hits += hit
        self.num += 1
        if self.num > 64:
            self.hits, self.num = self.hits / 2, self.num / 2

    @property
    def value(self) -> float:
        return (self.hits + 4 * self.expected) / (self.num + 4)


class Gains:
    """What is known of one request's sources of drafts."""

    def __init__(self) -> None:
        self._head: list[Rate] = []  # per position, given that those before it were accepted
        self._passages = [Rate(expected) for expected in _EXPECTED]

    def plan(self, num_tokens: int, found: Continuation, *, head: bool) -> tuple[int, int]:
        """How many tokens the head and then the passage should draft, together `num_tokens`.

        Without a head fewer where the rest would not pay.
        """
        recurs = self._recurrence(found) if found.token_ids else 0.0
        chances = [recurs ** (i + 1) for i in range(num_tokens)]
        if not head:
            return 0, sum(chance >= _ROW_COST for chance in chances)
        reached, gained = 1.0, 0.0
        best, most = num_tokens, -1.0
        for num_head in range(num_tokens + 1):
            total = gained + reached * sum(chances[num_head:]) - _STEP_COST * num_head
            if (found.token_ids or num_head == num_tokens) and total >= most:
                best, most = num_head, total
            reached *= self._accepted(num_head)
            gained += reached
        return best, num_tokens - best

    def learn(self, found: Continuation, emitted: Sequence[int], num_head: int) -> None:
        """Take in a round: the accepted tokens and one more, and how many the head drafted."""
        for position in range(min(len(emitted), num_head)):
            self._accepted(position)
            self._head[position].learn(position < len(emitted) - 1)
        for proposed, token_id in zip(found.token_ids, emitted, strict=False):
            self._passage(found).learn(proposed == token_id)
            if proposed != token_id:
                return

    def _accepted(self, position: int) -> float:
        while position >= len(self._head):
            self._head.append(Rate(0.5))
        return self._head[position].value

    def _passage(self, found: Continuation) -> Rate:
        assert found.num_matched >= MIN_MATCH
        return self._passages[sum(found.num_matched > length for length in _LONG_MATCHES)]

    def _recurrence(self, found: Continuation) -> float:
        return self._passage(found).value
