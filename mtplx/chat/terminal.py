"""Where the conversation is shown: standard output, and what it can show."""

import os
import sys

from mtplx.chat.render import MarkdownRenderer, PlainRenderer, Renderer
from mtplx.chat.theme import CALM, PLAIN, Theme, painted
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
        self.is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
        is_plain = not self.is_terminal or self.is_dumb or bool(os.environ.get("NO_COLOR"))
        self.theme = PLAIN if is_plain else theme

    def columns(self) -> int:
        """The width now."""
        try:
            return os.get_terminal_size(self._out.fileno()).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS

    def renderer(self) -> Renderer:
        """For one reply."""
        if not self.is_terminal:
            return PlainRenderer()
        return MarkdownRenderer(self.theme, self.columns)

    def write(self, text: str) -> None:
        """Text as it is, at once.

        Raises BrokenPipeError where the reader has gone and FileAccessError where it cannot be
        written.
        """
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise FileAccessError(f"Cannot write to standard output: {reason}.") from error

    def line(self, text: str = "", sgr: str = "", *, indent: int = 0) -> None:
        """A line of our own, wrapped; `indent` columns before the lines that follow the first."""
        text = printable(text)
        if not self.is_terminal:
            self.write(text + "\n")
            return
        lines = Wrapper(self.columns)
        lines.begin_line(text[:indent], sgr)
        lines.text(text[indent:], sgr)
        self.write(lines.finish() or "\n")

    def spacing(self) -> None:
        """An empty line, where somebody is looking."""
        if self.is_terminal:
            self.write("\n")

    def passing(self, text: str) -> bool:
        """Put text in place of the current line, which is empty or was put there like this.

        Returns whether there is any now.
        """
        if not self.theme.paints:
            return False
        self.write(f"\r{painted(text, self.theme.dim)}\x1b[K")
        return bool(text)

    def error(self, text: str) -> None:
        """A line on standard error, which says what a person can do something about."""
        if sys.stderr is not None and not (self.is_terminal and sys.stderr.isatty()):
            print(f"mtplx: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)
        else:
            self.line(text, self.theme.error)
