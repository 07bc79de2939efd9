"""Where the conversation is shown: standard output, and what it can show."""

import errno
import os
import sys

from mtplx.chat.render import MarkdownRenderer, PlainRenderer, Renderer, ThoughtRenderer
from mtplx.chat.status_line import StatusLine
from mtplx.chat.theme import CALM, PLAIN, Theme
from mtplx.chat.wrap import Wrapper
from mtplx.errors import FileAccessError
from mtplx.text.safe import printable

_DEFAULT_COLUMNS = 80


class Terminal:
    """Standard output, which is to replace what it cannot encode."""

    def __init__(self, theme: Theme = CALM) -> None:
        if sys.stdout is None:
            raise FileAccessError("Standard output is closed, so there is nowhere to write to.")
        self._out = sys.stdout
        self.is_terminal = self._out.isatty()
        self.has_gone = False  # it was closed
        self.is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        is_plain = not self.is_terminal or self.is_dumb or bool(os.environ.get("NO_COLOR"))
        self.theme = PLAIN if is_plain else theme
        self.status = StatusLine(self.write, self._size, self.theme.dim)

    def columns(self) -> int:
        """The width now."""
        size = self._size(must_move=False)
        return size.columns if size is not None else _DEFAULT_COLUMNS

    def renderer(self) -> Renderer:
        """For what a reply says."""
        if not self.is_terminal:
            return PlainRenderer()
        return MarkdownRenderer(self.theme, self.columns)

    def thought_renderer(self) -> Renderer:
        """For what a model thinks."""
        return ThoughtRenderer(self.theme, self.columns if self.is_terminal else None)

    def write(self, text: str) -> None:
        """Text as it is, at once; nothing where the terminal has gone.

        Raises BrokenPipeError where the reader has gone and FileAccessError where it cannot be
        written.
        """
        if self.has_gone:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if self.is_terminal and error.errno == errno.EIO:
                self.has_gone = True
                return
            reason = error.strerror or str(error)
            raise FileAccessError(f"Cannot write to standard output: {reason}.") from error

    def line(self, text: str = "", sgr: str = "", *, indent: int = 0) -> None:
        """A line of our own, wrapped; `indent` columns before the lines that follow the first.

        Where these would take half of the width, what stands in them has a line of its own.
        """
        text = printable(text)
        if not self.is_terminal:
            self.write(text + "\n")
            return
        if indent > self.columns() // 2:
            self.line(text[:indent].rstrip(), sgr)
            text, indent = f"  {text[indent:]}", 2
        lines = Wrapper(self.columns)
        lines.begin_line(text[:indent], sgr)
        lines.text(text[indent:], sgr)
        self.write(lines.finish() or "\n")

    def spacing(self) -> None:
        """An empty line, where somebody is looking."""
        if self.is_terminal:
            self.write("\n")

    def error(self, text: str) -> None:
        """A line on standard error, which says what a person can do something about."""
        if sys.stderr is not None and not (self.is_terminal and sys.stderr.isatty()):
            print(f"mtplx: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)
        else:
            self.line(text, self.theme.error)

    def _size(self, *, must_move: bool = True) -> os.terminal_size | None:
        """Columns and rows; None where they are not known, or the cursor has to move and cannot."""
        if must_move and (self.is_dumb or not self.is_terminal):
            return None
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return None
        return size if size.columns else None
