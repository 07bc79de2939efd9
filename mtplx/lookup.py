"""Drafts without a model: what followed the last tokens when they stood in the text before.

The index is that of a Lempel-Ziv compressor: for each run of three tokens the place where it last
ended, and for each place the one before it with the same run. It grows with the text and forgets
its older half when it is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_MATCH = 3  # tokens that have to recur
_BITS = 20  # of a token id that count in a run; more would only be a slower exact number
_RUN = (1 << MIN_MATCH * _BITS) - 1
_MAX_MATCH = 32  # a longer recurrence counts as one of this length
_MAX_TRIES = 16  # places that are compared, the latest first
_CAPACITY = 1 << 16  # places that survive when the index forgets


@dataclass(frozen=True, slots=True)
class Continuation:
    """token_ids: what followed the last tokens before. num_matched: how many of them recurred."""

    token_ids: tuple[int, ...] = ()
    num_matched: int = 0


class LookupIndex:
    """Where each run of tokens of one growing text stood."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._last: dict[int, int] = {}  # run -> the place where it ended last
        self._before: list[int] = []  # place - first -> the place before with the same run, or -1
        self._first = self._num_seen = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in what is new in the text. Its last token has no continuation and has to wait."""
        if len(token_ids) - self._num_seen > self._capacity:
            self._forget(len(token_ids) - self._capacity)
        start, end = self._num_seen, max(self._num_seen, len(token_ids) - 1)
        run, last, before = _run(token_ids, start - 1), self._last, self._before
        for place, token_id in enumerate(token_ids[start:end], start):
            run = (run << _BITS ^ token_id) & _RUN
            before.append(last.get(run, -1))
            last[run] = place
        self._num_seen = end
        if len(self._before) > 2 * self._capacity:
            self._forget(self._num_seen - self._capacity)
            self.extend(token_ids)

    def _forget(self, before: int) -> None:
        """Begin anew at this place; the next `extend` takes in what follows it."""
        self._last, self._before = {}, []
        self._first = self._num_seen = before

    def find(self, token_ids: Sequence[int], count: int) -> Continuation:
        """`count` tokens that followed the longest recurrence, the latest of equally long ones.

        Where the earlier occurrence reaches into the end of the text, its period goes on. Empty
        where fewer than MIN_MATCH tokens recur.
        """
        if len(token_ids) <= MIN_MATCH or count < 1:
            return Continuation()
        place = self._last.get(_run(token_ids, len(token_ids) - 1), -1)
        best, longest = -1, MIN_MATCH - 1
        for _ in range(_MAX_TRIES):
            if place < self._first:
                break
            length = _match(token_ids, place)
            if length > longest:
                best, longest = place, length
            place = self._before[place - self._first]
        if best < 0:
            return Continuation()
        period = len(token_ids) - best - 1
        return Continuation(tuple(token_ids[best + 1 + i % period] for i in range(count)), longest)


def _run(token_ids: Sequence[int], place: int) -> int:
    """A number for the tokens that end here: the same for equal runs, seldom for others."""
    run = 0
    for token_id in token_ids[max(place - MIN_MATCH + 1, 0) : place + 1]:
        run = (run << _BITS ^ token_id) & _RUN
    return run


def _match(token_ids: Sequence[int], place: int) -> int:
    """How many tokens that end at this place are those at the end of the text."""
    end = len(token_ids) - 1
    longest = min(_MAX_MATCH, place + 1)
    length = 0
    while length < longest and token_ids[place - length] == token_ids[end - length]:
        length += 1
    return length
