"""Somebody at a real terminal: a pseudo-terminal with `mtplx chat` on its other side."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0  # for a loaded machine to load a model or to answer
CONTROL_C, CONTROL_D, CONTROL_O = b"\x03", b"\x04", b"\x0f"
ENTER, ALT_ENTER, UP, TAB = b"\r", b"\x1b\r", b"\x1b[A", b"\t"
SEQUENCE = re.compile(rb"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>78DM])")

# A process without job control between the terminal and the program, as `make` is. It has the
# terminal, says the program's process id and how it ended, and lives on.
LEADER = """
import fcntl, os, signal, subprocess, sys, termios, time
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
program = subprocess.Popen(sys.argv[2:])
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[1], "w") as file:
    file.write(f"{program.pid}\\n")
code = program.wait()
with open(sys.argv[1], "a") as file:
    file.write(f"{code}\\n")
time.sleep(600)
"""


class Typist:
    """Types at the program's terminal and reads its screen."""

    def __init__(self, master: int, notes: Path, screen: pyte.Screen) -> None:
        self.master = master
        self.screen = screen
        self.output = b""  # all of it
        self.pressed = b""  # by press, say and paste
        self._notes = notes
        self._read_to = 0
        self._stream = pyte.ByteStream(screen)

    @property
    def pid(self) -> int:
        """The program's process id."""
        return int(self._wait_for_note(0))

    def has_ended(self) -> bool:
        return len(self._notes.read_text().splitlines()) > 1

    def exit_code(self) -> int:
        """The program's exit code, once it has ended."""
        return int(self._wait_for_note(1))

    def press(self, keys: bytes | str) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        self.pressed += data
        while data:
            self._read(0)  # or both sides wait for each other
            data = data[os.write(self.master, data[:512]) :]

    def say(self, line: str) -> None:
        """Type a line and Enter."""
        self.press(line.encode() + ENTER)

    def paste(self, text: str) -> None:
        """What a terminal sends for pasted text."""
        self.press(b"\x1b[200~" + text.replace("\n", "\r").encode() + b"\x1b[201~")

    def expect(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the unread output, without escape sequences, matches; what comes up to it."""
        deadline = time.monotonic() + timeout_s
        while True:
            text = self.unread()
            match = re.search(pattern, text)
            if match is not None:
                self._read_to += self._raw_length(text[: match.end()])
                return text[: match.end()]
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{pattern!r} did not come. There was: {text[-2000:]!r}"
            self._read(min(left_s, 1.0))

    def unread(self) -> str:
        """The output behind what was expected last, without escape sequences."""
        return SEQUENCE.sub(b"", self.output[self._read_to :]).decode(errors="replace")

    def at_prompt(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the cursor stands at an empty prompt, and leave all output behind."""
        deadline = time.monotonic() + timeout_s
        while not self._is_at_prompt():
            left_s = deadline - time.monotonic()
            assert left_s > 0, "No prompt came. There was:\n" + "\n".join(self.shown())
            self._read(min(left_s, 1.0))
        self._read_to = len(self.output)

    def shown(self) -> list[str]:
        """The lines on the screen, without spaces at their ends."""
        return [line.rstrip() for line in self.screen.display]

    def read_for(self, duration_s: float) -> None:
        deadline = time.monotonic() + duration_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._read(left_s)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """The terminal's modes as the program's side has them."""
        return termios.tcgetattr(self.master)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone."""
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal, as its window does."""
        os.close(self.master)
        self.master = -1

    def _raw_length(self, text: str) -> int:
        """How many bytes of unread output show this beginning of it."""
        wanted, raw = text.encode(errors="replace"), self.output[self._read_to :]
        place = 0
        while wanted:
            sequence = SEQUENCE.match(raw, place)
            if sequence is not None:
                place = sequence.end()
            else:
                wanted, place = wanted[1:], place + 1
        return place

    def _is_at_prompt(self) -> bool:
        cursor = self.screen.cursor
        return cursor.x == 2 and self.screen.display[cursor.y].rstrip() == ">"

    def _read(self, timeout_s: float) -> None:
        if select.select([self.master], [], [], timeout_s)[0]:
            data = os.read(self.master, 65536)
            self.output += data
            self._stream.feed(data)

    def _wait_for_note(self, line: int) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            lines = self._notes.read_text().splitlines() if self._notes.exists() else []
            if len(lines) > line:
                return lines[line]
            self._read(0.05)
        raise AssertionError(f"The program did not end. It showed: {self.unread()[-2000:]!r}")


@contextmanager
def at_terminal(
    arguments: Sequence[object],
    home: Path,
    *,
    columns: int = 80,
    rows: int = 24,
    **environment: str,
) -> Iterator[Typist]:
    """`mtplx chat` with these arguments on a terminal of its own, in a home of its own."""
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    places = {f"XDG_{name}_HOME": str(home / name) for name in ("CONFIG", "DATA")}
    known = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    settings = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **places, **environment}
    notes = home / f"notes-{time.monotonic_ns()}"
    program = [sys.executable, "-m", "mtplx", "chat", *map(str, arguments)]
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(notes), *program],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**known, **settings},
        cwd=home,
    )
    os.close(slave)
    typist = Typist(master, notes, pyte.Screen(columns, rows))
    try:
        yield typist
    finally:
        for pid in (typist.pid, leader.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leader.wait()
        if typist.master >= 0:
            os.close(master)


def said(home: Path) -> list[str]:
    """The messages of the last conversation that anything was said in, to the character."""
    folder = home / "DATA" / "mtplx" / "conversations"
    path = max(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [record["text"] for record in records if record["type"] == "user"]
