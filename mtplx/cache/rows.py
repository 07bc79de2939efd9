"""What caches that hold a row per token have in common: an offset, and the last pass's rows."""

import mlx.core as mx

from mtplx.errors import RollbackError
from mtplx.speculation import Snapshot

STEP = 256  # rows by which the buffers grow


class RowCache:
    """Rows in order of position; undoing moves the offset, and what lies behind it is stale."""

    keeps_every_length = True
    num_replays = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0
        self._last_pass = 0

    def _append(self, num_rows: int) -> None:
        self.offset, self._last_pass = self.offset + num_rows, num_rows

    def check(self, start: int, num_rows: int) -> None:
        """Raise RollbackError unless the last pass put `num_rows` rows behind the first `start`."""
        if self.offset != start + num_rows or self._last_pass != num_rows:
            raise RollbackError(
                f"{self.name}: a pass of {num_rows} tokens after {start} should have been recorded "
                f"here, but this layer holds {self.offset}, {self._last_pass} of them of its last "
                "pass. Nothing was kept; the model runs a layer twice, or not at all."
            )

    def keep(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` rows of the last pass, or raise RollbackError if it had
        fewer."""
        if not 0 <= num_tokens <= self._last_pass:
            raise RollbackError(
                f"{self.name}: asked to keep {num_tokens} tokens of a pass of {self._last_pass}."
            )
        self.offset -= self._last_pass - num_tokens
        self._last_pass = 0

    def reaches(self, length: int) -> bool:
        """Whether `rewind` can go back to this length."""
        return 0 <= length <= self.offset

    def rewind(self, length: int) -> None:
        """Hold only the first `length` tokens. RollbackError where that cannot be done."""
        if not self.reaches(length):
            raise RollbackError(f"{self.name}: cannot go back to {length} of {self.offset} tokens.")
        self.offset, self._last_pass = length, 0

    def restore(self, snapshot: Snapshot) -> None:
        """Go to where a snapshot was taken."""
        (length,) = snapshot.numbers
        if snapshot.arrays:
            self._fill(length, snapshot.arrays)
            self.offset = length
        self.rewind(length)

    def _fill(self, length: int, arrays: tuple[mx.array, ...]) -> None:
        raise NotImplementedError


def grown(held: mx.array | None, num_held: int, new: mx.array, num_rows: int) -> mx.array:
    """The first `num_held` rows of a buffer [B, H, T, D], with room for `num_rows` rows like `new`.

    Buffers are a whole number of steps long.
    """
    batch, heads, _, width = new.shape
    room = mx.zeros((batch, heads, whole_steps(num_rows) - num_held, width), new.dtype)
    return room if held is None else mx.concatenate([held[..., :num_held, :], room], axis=2)


def in_type(rows: mx.array, dtype: mx.Dtype | None) -> mx.array:
    """Rows as a cache of this type keeps them; None is as they come."""
    return rows if dtype is None else rows.astype(dtype)


def whole_steps(num_rows: int) -> int:
    return -(-num_rows // STEP) * STEP


def window_mask(first: int, offset: int, num_rows: int, window: int | None = None) -> mx.array:
    """Which columns each row of a pass sees, [T, offset + T - first] bool.

    Row i stands at position offset + i, column j at first + j. A row sees the `window` positions up
    to its own, or all of them.
    """
    rows = mx.arange(offset, offset + num_rows)[:, None]
    columns = mx.arange(first, offset + num_rows)[None]
    seen = columns <= rows
    return seen if window is None else seen & (rows < columns + window)
