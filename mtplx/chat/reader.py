"""Where messages come from: protocol, and standard input that nobody types at."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, Protocol

from mtplx.chat.entry import Entry, opens_quotes, unquoted
from mtplx.chat.terminal import Terminal
from mtplx.errors import FileAccessError, MtplxError, UsageError

MAX_BYTES = 64 << 20  # more than any context holds


class LeaveError(Exception):
    """A signal asks this process to end; `number` is which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def leaving_signals() -> list[signal.Signals]:
    """Those that ask this process to end, but for what it was started to ignore, as by nohup."""
    asked = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in asked if signal.getsignal(number) is not signal.SIG_IGN]


@dataclass(frozen=True, slots=True)
class Background:
    """What goes on while an entry is waited for.

    status: the status line now. fileno: of a file that is readable when there is news.
    hear: called then; it gives what writes the news, and what it raises ends the waiting.
    """

    status: Callable[[], str]
    fileno: int
    hear: Callable[[], Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class Pressed:
    """Keys that mean something while a reply runs: Ctrl-C and Ctrl-O."""

    interrupt: bool = False
    fold: bool = False


class Reader(Protocol):
    """Gives what is entered, and watches for keys while a reply runs."""

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types."""

    @property
    def is_live(self) -> bool:
        """Whether it heeds what goes on in the background while it waits."""

    @property
    def problem(self) -> MtplxError | None:
        """Why what is entered is not remembered, where it should be."""

    def open(self) -> AbstractContextManager[None]:
        """Have standard input. To be entered before this process has a second thread."""

    def read(self, background: Background, *, draft: str = "", edits: bool = False) -> Entry:
        """The next entry. draft: what the line holds already. edits: begin in an editor.

        Raises EOFError at the end, KeyboardInterrupt for Ctrl-C without text, LeaveError for a
        signal, UsageError for what is no text, and what `background.hear` raises.
        """

    def watched(self) -> list[int]:
        """File descriptors that become readable when `pressed` should be asked."""

    def pressed(self) -> Pressed:
        """The keys since the last time. What else was typed is kept for `read`."""


class LineReader:
    """Standard input, one message a line: a pipe, a file, or a terminal that can do nothing.

    Lines between three quotes are one message.
    """

    def __init__(self, terminal: Terminal, *, is_interactive: bool) -> None:
        if sys.stdin is None:
            raise FileAccessError("Standard input is closed, so there is nothing to read.")
        self.is_interactive = is_interactive
        self.is_live = False
        self.problem = None
        self._terminal = terminal
        self._source: BinaryIO = sys.stdin.buffer
        self._num_lines = 0

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, background: Background, *, draft: str = "", edits: bool = False) -> Entry:
        if edits:
            raise UsageError("There is no terminal here for an editor. Pipe the text in instead.")
        text = self._text_line()
        first = self._num_lines
        while opens_quotes(text):
            try:
                text += "\n" + self._text_line(is_first=False)
            except EOFError as error:
                raise UsageError(
                    f"The three quotes in line {first:,} of standard input are not closed."
                ) from error
        return unquoted(text)

    def watched(self) -> list[int]:
        return []

    def pressed(self) -> Pressed:
        return Pressed()

    def _text_line(self, *, is_first: bool = True) -> str:
        """The next line, without its end. is_first: of an entry."""
        line = b""
        try:
            with _interruptible():
                if self.is_interactive:
                    self._terminal.write("> " if is_first else "  ")
                line = self._line()
        finally:
            if self.is_interactive and not line:
                self._terminal.write("\n")
        if not line:
            raise EOFError
        self._num_lines += 1
        if len(line) > MAX_BYTES:
            raise UsageError(
                f"Line {self._num_lines:,} of standard input is over {MAX_BYTES >> 20} MB, more "
                "than any model's context. Give a part of it."
            )
        return self._decoded(line).rstrip("\r\n")

    def _line(self) -> bytes:
        try:
            return self._source.readline(MAX_BYTES + 1)
        except OSError as error:
            raise FileAccessError(f"Cannot read standard input: {error.strerror}.") from error

    def _decoded(self, line: bytes) -> str:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if self.is_interactive:
                return line.decode("utf-8", "replace")
            raise UsageError(
                f"Line {self._num_lines:,} of standard input is not UTF-8 text: byte "
                f"0x{line[error.start]:02x} at offset {error.start} ({error.reason}). Convert it "
                "first, for example with iconv."
            ) from error
        return text.removeprefix("\ufeff") if self._num_lines == 1 else text


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt and LeaveError, which a blocking read is ended by."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise LeaveError(number)

    actions = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(leaving_signals(), leave)}
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
