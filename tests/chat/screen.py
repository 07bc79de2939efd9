"""A terminal in memory: what is written to it, as somebody would see it."""

import fcntl
import io
import os
import struct
import termios
from pathlib import Path

import pyte

SNAPSHOTS = Path(__file__).parent / "screens"


class Screen(io.TextIOBase):
    """Can stand in for standard output. Its size can be changed with `resize`."""

    def __init__(self, columns: int, rows: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        self.num_written = 0
        self._stream = pyte.Stream(self.screen)
        self._master, self._slave = os.openpty()  # only for its size
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def write(self, text: str) -> int:
        self.num_written += len(text)
        # The emulator drops what follows a joiner that it does not know.
        self._stream.feed(text.replace("\n", "\r\n").replace("\u200d", ""))
        return len(text)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._slave

    def close(self) -> None:
        if not self.closed:
            os.close(self._master)
            os.close(self._slave)
        super().close()

    def size(self) -> os.terminal_size:
        return os.get_terminal_size(self._slave)

    def lines(self) -> list[str]:
        """The rows as they are now, without spaces at their ends."""
        return [line.rstrip() for line in self.screen.display]

    def text(self) -> str:
        """Everything that was ever on it."""
        columns = range(self.screen.columns)
        past = ["".join(row[x].data for x in columns).rstrip() for row in self.screen.history.top]
        return "\n".join([*past, *self.lines()]).rstrip()


def check_snapshot(name: str, text: str) -> None:
    """Compare with the file of that name, which a person has looked at.

    Where the file is missing, it is written and the test fails, so that somebody looks.
    """
    path = SNAPSHOTS / f"{name}.txt"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", "utf-8")
        raise AssertionError(f"{path} was made; look at it, and run this again.")
    assert text + "\n" == path.read_text("utf-8")
