"""Markdown as it streams: painted, wrapped, and never a control sequence of the model's own.

A mark is only taken for one once its end has come: `**kwargs` stays as it is, and nothing that
was written has to be taken back. What waits for its end is at most one span of one line. Where
the theme does not paint, all marks stay.
"""

import re
from collections.abc import Callable
from typing import Protocol

from mtplx.chat.theme import Theme
from mtplx.chat.wrap import Wrapper
from mtplx.text.safe import printable

LONGEST_SPAN = 160  # characters a span may wait for its end
_CODE = re.compile(r"(`+)(?!`)(.*?[^`])\1(?!`)")
_STRONG = re.compile(r"\*\*(?![\s*])(.*?[^\s*])\*\*(?!\*)")
_MAY_BECOME_SPAN = re.compile(r"`.*|\*+|\*\*[^\s*].*")
_MARKS = re.compile(r"`+|\*+")

# The beginning of a line as long as it may still become one of the below.
_UNDECIDED = re.compile(r"\s*(#{1,6}|[-+*>]|\d{1,9}[.)]?|`{1,2}|~{1,2})?")
_ITEM = re.compile(r"\s*([-+*]|\d{1,9}[.)]|>) ")
_HEADING = re.compile(r"\s*#{1,6} ")
_FENCE = re.compile(r"\s*(?:(`{3,})[^`]*|(~{3,}).*)")


class Renderer(Protocol):
    """Model text to what is written on standard output."""

    def feed(self, text: str) -> str:
        """What can be written now."""

    def finish(self) -> str:
        """The rest, ending with a newline if there was any text."""


class PlainRenderer:
    """Text as it is but for control characters, where no terminal shows it."""

    def __init__(self) -> None:
        self._last = "\n"

    def feed(self, text: str) -> str:
        self._last = text[-1:] or self._last
        return printable(text)

    def finish(self) -> str:
        return "" if self._last == "\n" else "\n"


class ThoughtRenderer:
    """What a model thinks: set off by a bar, so that it is told apart without paint too.

    width: None where no terminal shows it; then only each line's beginning is marked.
    """

    def __init__(self, theme: Theme, width: Callable[[], int] | None) -> None:
        self._sgr = theme.dim
        self._bar = "| " if width is None else "│ "
        self._lines = Wrapper(width or (lambda: 1 << 30))
        self._has_begun = False

    def feed(self, text: str) -> str:
        for part in re.findall(r"\n|[^\n]+", printable(text)):
            if part == "\n":
                self._begin()
                self._lines.newline()
                self._has_begun = False
            else:
                self._begin()
                self._lines.text(part, self._sgr)
        return self._lines.take()

    def finish(self) -> str:
        return self._lines.finish()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._lines.begin_line(self._bar, self._sgr, repeats=True)


class MarkdownRenderer:
    """Markdown for a terminal of `width()` columns. How the text is cut into pieces is no matter.

    Headings, strong text, inline code and fences are painted, lists and quotes have their wrapped
    lines indented, and code and tables are left unbroken.
    """

    def __init__(self, theme: Theme, width: Callable[[], int]) -> None:
        self._theme = theme
        self._lines = Wrapper(width)
        self._state = self._begin
        self._held = ""  # not decided yet: the beginning of a line, or a span
        self._prefix = ""  # list and quote marks of this line
        self._base = ""  # what the text of this line is painted with
        self._fence = ""  # the fence that code is in

    def feed(self, text: str) -> str:
        for part in re.findall(r"\n|[^\n]+", printable(text)):
            if part == "\n":
                self._end_line()
                self._lines.newline()
            else:
                self._state(part)
        return self._lines.take()

    def finish(self) -> str:
        self._end_line()
        return self._lines.finish()

    def _begin(self, text: str) -> None:
        """The beginning of a line outside code: what is this line?"""
        for place, character in enumerate(text, start=1):
            self._held += character
            if _ITEM.fullmatch(self._held):
                self._prefix, self._held = self._prefix + self._held, ""
            elif _HEADING.fullmatch(self._held):
                self._begin_text("" if self._theme.paints else self._held, self._theme.heading)
            elif _FENCE.fullmatch(self._held):
                self._state = self._begin_fence
            elif not _UNDECIDED.fullmatch(self._held):
                self._decide_text()
            else:
                continue
            if self._state != self._begin:
                self._state(text[place:])
                return

    def _decide_text(self) -> None:
        if self._held.lstrip().startswith("|"):
            self._lines.verbatim(self._prefix + self._held)
            self._held, self._state = "", self._table
            return
        held, self._held = self._held, ""
        text = held.lstrip()
        self._begin_text(held[: len(held) - len(text)])
        self._state(text)

    def _begin_text(self, prefix: str, base: str = "") -> None:
        self._lines.begin_line(self._prefix + prefix)
        self._held, self._base, self._state = "", base, self._inline

    def _begin_fence(self, text: str) -> None:
        self._held += text
        if not _FENCE.fullmatch(self._held):
            self._decide_text()  # three backticks of inline code

    def _begin_code(self, text: str) -> None:
        """The beginning of a line inside code: does it end the code?"""
        self._held += text
        if self._held.strip().strip(self._fence[0]) or len(self._held) > LONGEST_SPAN:
            held, self._held, self._state = self._held, "", self._code
            self._code(held)

    def _code(self, text: str) -> None:
        self._lines.verbatim(text, self._theme.code)

    def _table(self, text: str) -> None:
        self._lines.verbatim(text)

    def _inline(self, text: str, *, final: bool = False) -> None:
        """Text of a line. final: nothing follows in this line."""
        if not self._theme.paints:
            self._lines.text(text)
            return
        self._held += text
        while self._held:
            mark = _MARKS.search(self._held)
            start = mark.start() if mark else len(self._held)
            if start:
                self._lines.text(self._held[:start], self._base)
                self._held = self._held[start:]
            elif (span := self._span(final=final)) is not None:
                self._held = self._held[span:]
            elif (
                final
                or len(self._held) > LONGEST_SPAN
                or not _MAY_BECOME_SPAN.fullmatch(self._held)
            ):
                marks = mark[0] if mark else ""
                self._lines.text(marks, self._base)
                self._held = self._held[len(marks) :]
            else:
                return

    def _span(self, *, final: bool) -> int | None:
        """Write the span that is held, if it is whole; return its length with its marks."""
        strong = _STRONG.match(self._held)
        match = strong or _CODE.match(self._held)
        if match is None or match.end() > LONGEST_SPAN:
            return None
        if match.end() == len(self._held) and not final:
            return None  # one more character shows whether this is the end
        if strong:
            self._strong(strong[1])
        else:
            self._lines.text(match[2], self._theme.code)
        return match.end()

    def _strong(self, text: str) -> None:
        place = 0
        for code in _CODE.finditer(text):
            self._lines.text(text[place : code.start()], self._theme.strong)
            self._lines.text(code[2], self._theme.code)
            place = code.end()
        self._lines.text(text[place:], self._theme.strong)

    def _end_line(self) -> None:
        if self._state == self._begin and (self._held or self._prefix):
            self._decide_text()
        if self._state == self._inline:
            self._inline("", final=True)
        elif self._state == self._begin_fence:
            opening = _FENCE.fullmatch(self._held)
            self._fence = (opening[1] or opening[2]) if opening else ""
            self._lines.verbatim(self._prefix + self._held, self._theme.dim)
        elif self._state == self._begin_code:
            ends = self._held.strip().startswith(self._fence)
            self._lines.verbatim(self._held, self._theme.dim if ends else self._theme.code)
            self._fence = "" if ends else self._fence
        self._held = self._prefix = self._base = ""
        self._state = self._begin_code if self._fence else self._begin
