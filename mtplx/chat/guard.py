"""A terminal that is as it was when this process ends, even if it is killed.

Line editing switches off the terminal's own echo and line ends. A process that is killed, or that
crashes in native code, cannot switch them on again, and what started it need not do so either.
So a child process that does nothing else waits for its end.
"""

import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

# No bracketed paste, cursor shown, not painted, all rows scroll and those below are empty.
_AS_USUAL = b"\x1b[?2004l\x1b[?25h\x1b[0m\x1b7\x1b[r\x1b8\x1b[J\r\n"
_IGNORED = ("SIGINT", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGHUP", "SIGTERM")


@contextmanager
def guarded_terminal(terminal: int) -> Iterator[None]:
    """Restore the terminal's modes at the end of the block, or of this process inside it.

    terminal: a file descriptor. To be entered before this process has a second thread.
    """
    modes = termios.tcgetattr(terminal)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writable)
        _wait_for_the_end(readable, terminal, modes)
    os.close(readable)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
        with suppress(BrokenPipeError):
            os.write(writable, b".")
        os.close(writable)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _wait_for_the_end(readable: int, terminal: int, modes: list[object]) -> NoReturn:
    try:
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        was_killed = os.read(readable, 1) == b""
        # A shell that has taken the terminal back looks after it by itself.
        if was_killed and os.tcgetpgrp(terminal) == os.getpgrp():
            termios.tcsetattr(terminal, termios.TCSANOW, modes)  # type: ignore[arg-type]
            os.write(terminal, _AS_USUAL)
    finally:
        os._exit(0)
