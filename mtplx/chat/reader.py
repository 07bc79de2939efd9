"""Where messages come from: protocol, and standard input that nobody types at."""

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO, Protocol

from mtplx.chat.commands import Entry
from mtplx.chat.terminal import Terminal
from mtplx.errors import FileAccessError, MtplxError, UsageError

MAX_BYTES = 64 << 20  # more than any context holds


class Reader(Protocol):
    """Gives what is entered, and watches for Ctrl-C while a reply runs."""

    @property
    def is_interactive(self) -> bool:
        """Whether somebody types."""

    @property
    def problem(self) -> MtplxError | None:
        """Why what is entered is not remembered, where it should be."""

    def open(self) -> AbstractContextManager[None]:
        """Have standard input. To be entered before this process has a second thread."""

    def read(self) -> Entry:
        """The next entry. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C without text."""

    def watched(self) -> list[int]:
        """File descriptors that become readable when `was_interrupted` should be asked."""

    def was_interrupted(self) -> bool:
        """Whether Ctrl-C came since the last time. What else was typed is kept for `read`."""


class LineReader:
    """Standard input, one message a line: a pipe, a file, or a terminal that can do nothing."""

    def __init__(self, terminal: Terminal, *, is_interactive: bool) -> None:
        if sys.stdin is None:
            raise FileAccessError("Standard input is closed, so there is nothing to read.")
        self.is_interactive = is_interactive
        self.problem = None
        self._terminal = terminal
        self._source: BinaryIO = sys.stdin.buffer
        self._num_lines = 0

    def open(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> Entry:
        line = b""
        try:
            with _interruptible():
                if self.is_interactive:
                    self._terminal.write("> ")
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
        return Entry(self._decoded(line).rstrip("\r\n"))

    def watched(self) -> list[int]:
        return []

    def was_interrupted(self) -> bool:
        return False

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
    """Let SIGINT raise KeyboardInterrupt, which a blocking read needs to be ended by."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
