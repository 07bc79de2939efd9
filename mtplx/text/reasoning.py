"""What in a reply is thought, what is said, and what is a call of a tool.

Models mark these parts with tags. Tags can be cut anywhere by tokens and by rounds that bring
several, so text that may still become a tag is held back, and no more than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.text.tags import Part, Tags


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a reply. begins: it is the first of a part, not the rest of the one before."""

    part: Part
    text: str
    begins: bool


class ReplySplitter:
    """Splits one reply; the parts do not depend on how the text is cut into pushes.

    Reasoning is only taken for such at the beginning and behind another part, so that an answer
    may speak of the tag. Line ends next to the tags are left out; a reply without tags is text to
    the character.
    """

    def __init__(self, tags: Sequence[Tags], inside: Tags | None = None) -> None:
        self._tags = tags
        self._tools = [pair for pair in tags if pair.part is Part.TOOL_CALL]
        self._open = inside
        self._held = ""
        self._at_start = True  # of a part: only spaces so far
        self._behind: Part | None = None  # the part that the text follows
        self._begins = True

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, now that nothing follows."""
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self._open is not None or self._behind is not None:
            held = held.rstrip()
        if self._at_start and (self._open is not None or self._behind is not None):
            held = held.lstrip("\n")
        self._emit(pieces, held)
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Settle the beginning of what is held; whether there may be more to settle."""
        if self._open is not None:
            return self._inside(pieces, self._open)
        return self._before_text(pieces) if self._at_start else self._in_text(pieces)

    def _before_text(self, pieces: list[Piece]) -> bool:
        """Where text, or any other part, may begin."""
        text = self._held.lstrip()
        opened = next((pair for pair in self._tags if text.startswith(pair.opening)), None)
        if opened is not None:
            self._enter(opened, text[len(opened.opening) :])
            return True
        if not text or any(pair.opening.startswith(text) for pair in self._tags):
            return False
        self._held = self._held if self._behind is None else self._held.lstrip("\n")
        self._at_start = False
        return True

    def _in_text(self, pieces: list[Piece]) -> bool:
        place, opened = min(
            ((at, pair) for pair in self._tools if (at := self._held.find(pair.opening)) >= 0),
            key=lambda found: found[0],
            default=(-1, None),
        )
        if opened is None:
            self._emit_but(pieces, _unsure(self._held, [pair.opening for pair in self._tools]))
            return False
        self._emit(pieces, self._held[:place])
        self._enter(opened, self._held[place + len(opened.opening) :])
        return True

    def _inside(self, pieces: list[Piece], tags: Tags) -> bool:
        """In reasoning or a call: up to its closing tag, without line ends next to the tags."""
        if self._at_start:
            self._held = self._held.lstrip("\n")
            self._at_start = not self._held
        place = self._held.find(tags.closing)
        if place < 0:
            unsure = _unsure(self._held, [tags.closing])
            sure = self._held[: len(self._held) - unsure]
            self._emit_but(pieces, unsure + len(sure) - len(sure.rstrip()))
            return False
        self._emit(pieces, self._held[:place].rstrip())
        self._held = self._held[place + len(tags.closing) :]
        self._open, self._behind = None, tags.part
        self._at_start = self._begins = True
        return True

    def _enter(self, tags: Tags, rest: str) -> None:
        self._open, self._held = tags, rest
        self._at_start = self._begins = True

    def _emit_but(self, pieces: list[Piece], num_held: int) -> None:
        sure = len(self._held) - num_held
        text, self._held = self._held[:sure], self._held[sure:]
        self._emit(pieces, text)

    def _emit(self, pieces: list[Piece], text: str) -> None:
        if text:
            part = Part.TEXT if self._open is None else self._open.part
            pieces.append(Piece(part, text, self._begins))
            self._begins = False


def _unsure(text: str, tags: Sequence[str]) -> int:
    """The length of the text's end that may be the beginning of a tag."""
    longest = max(map(len, tags), default=0)
    for length in range(min(len(text), longest - 1), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
