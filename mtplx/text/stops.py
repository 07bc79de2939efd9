"""Stop strings: end a text where one of them begins, wherever its tokens are cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.errors import UsageError


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop string that ended a text, and where it began.

    start: characters of text before it, counted from the first push. The tokens that belong to
        the text are those whose characters end at or before `start`.
    """

    stop: str
    start: int


class StopMatcher:
    """Ends a text at the first place where any stop string begins.

    Where several begin at the same place, the shortest is the match. Text that may still turn out
    to be the beginning of a stop string is held back, and no more than that. What is emitted in
    all, and the match, do not depend on how the text is cut into pushes.
    Raises UsageError for a stop string that is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise UsageError(
                f"Stop strings must be a list of texts that are not empty, not {stops!r}."
            )
        self._stops = sorted(set(stops), key=len)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._num_emitted = 0
        self._match: StopMatch | None = None

    @property
    def match(self) -> StopMatch | None:
        """The match that ended the text; None while there is none."""
        return self._match

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop string has ended it.

        After the end, everything pushed is dropped.
        """
        if self._match is not None:
            return "", True
        self._held += text
        return self._settle(self._first_beginning())

    def finish(self) -> tuple[str, bool]:
        """What was held back, now that no text follows, and whether a stop string ends it."""
        if self._match is not None:
            return "", True
        return self._settle(len(self._held))

    def _settle(self, limit: int) -> tuple[str, bool]:
        """Emit what lies before `limit`; a stop string that begins before it ends the text."""
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        start, stop = min(found, key=lambda place: place[0], default=(len(self._held), ""))
        if stop and start <= limit:
            limit = start
            self._match = StopMatch(stop, self._num_emitted + start)
        emitted = self._held[:limit]
        self._held = "" if self._match is not None else self._held[limit:]
        self._num_emitted += len(emitted)
        return emitted, self._match is not None

    def _first_beginning(self) -> int:
        """Where the first stop string begins that the text may still complete, or its end."""
        length = len(self._held)
        for start in range(max(0, length - self._longest + 1), length):
            tail = self._held[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return length
