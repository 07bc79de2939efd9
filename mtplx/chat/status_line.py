"""A line at the bottom of the terminal while a reply is written above it.

The terminal scrolls the rows above it only, so the text is never redrawn for the line's sake and
the line is written over itself: neither flickers. The cursor is put back by the terminal's own
memory, never to a column that we have counted, since terminals differ in the width of characters.
"""

import os
from collections.abc import Callable

from rich.cells import cell_len, set_cell_size

from mtplx.chat.theme import painted

FEWEST_ROWS = 6  # below, all rows are for the text
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_ROW_BELOW = "\x1bD\x1b[A"  # there is a row below the cursor's, in the same column
_ERASE_BELOW = "\x1b[J"


class StatusLine:
    """size: columns and rows now, None where they are not known. write: to the terminal at once."""

    def __init__(
        self, write: Callable[[str], object], size: Callable[[], os.terminal_size | None], sgr: str
    ) -> None:
        self._write = write
        self._size = size
        self._sgr = sgr
        self._shown: tuple[os.terminal_size, str] | None = None  # as it is on the screen

    def show(self, text: str) -> None:
        """Have this text there, as much of it as fits; the cursor is in the text above."""
        size = self._size()
        if size is None or size.lines < FEWEST_ROWS:
            self.close()
            return
        if self._shown == (size, text):
            return
        fitting = fitted(text, size.columns - 1)
        row = f"{_SAVE}\x1b[{size.lines};1H{painted(fitting, self._sgr)}\x1b[K{_RESTORE}"
        has_rows = self._shown is not None and self._shown[0] == size
        rows = "" if has_rows else _set_rows(size.lines - 1, anew=self._shown is not None)
        self._write(rows + row)
        self._shown = (size, text)

    def close(self) -> None:
        """Have no line and all rows for the text."""
        if self._shown is not None:
            self._shown = None
            self._write(f"{_SAVE}\x1b[r{_RESTORE}{_ERASE_BELOW}")


def fitted(text: str, columns: int) -> str:
    """The beginning of a text that has so many columns at most."""
    return text if cell_len(text) <= columns else set_cell_size(text, max(columns, 0)).rstrip()


def _set_rows(num_rows: int, *, anew: bool) -> str:
    """Scroll the first rows only. anew: the terminal was resized, and a line may lie below."""
    before = f"{_SAVE}\x1b[r{_RESTORE}{_ERASE_BELOW}" if anew else ""
    return f"{before}{_ROW_BELOW}{_SAVE}\x1b[1;{num_rows}r{_RESTORE}"
