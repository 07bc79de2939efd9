"""State of a layer that attends to a sliding window.

A ring, as mlx-lm keeps it, has overwritten what a rejected token pushed out. Here rows stay in
order and those behind the window are dropped late: a block of any length is appended, seen through
a mask, and cut back like any other attention state, also where it crosses the window's edge.
"""

import mlx.core as mx

from mtplx.cache.rows import RowCache, grown, in_type, window_mask
from mtplx.errors import RollbackError
from mtplx.speculation import Snapshot

ROOM = 64  # rows that stay behind the window, so that it can go back as many tokens


class WindowCache(RowCache):
    """The last `window` keys and values [1, H, T, D], and some before them.

    dtype: of the rows that are kept and fetched; None is what they come in.
    """

    keeps_every_length = False

    def __init__(self, window: int, name: str = "window", dtype: mx.Dtype | None = None) -> None:
        super().__init__(name)
        self.window, self.dtype = window, dtype
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._first = 0  # the position of the first row held
        self._seen_from = 0  # the position of the first row that the last pass sees

    def _oldest(self, length: int) -> int:
        """The first position that a token behind the first `length` sees."""
        return max(0, length - (self.window - 1))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the rows of one pass; return those that any of its rows sees."""
        keys, values = in_type(keys, self.dtype), in_type(values, self.dtype)
        start, end = self.offset, self.offset + keys.shape[2]
        if self.keys is None or self.values is None or end - self._first > self.keys.shape[2]:
            self._make_room(keys, values, end)
        assert self.keys is not None
        assert self.values is not None
        rows = slice(start - self._first, end - self._first)
        self.keys[..., rows, :] = keys
        self.values[..., rows, :] = values
        self._seen_from = self._oldest(start)
        self._append(end - start)
        return self.keys_and_values()

    def _make_room(self, keys: mx.array, values: mx.array, end: int) -> None:
        first = max(self._first, self._oldest(self.offset) - ROOM)
        num_held, num_rows = self.offset - first, end - first
        if self.keys is not None and self.values is not None:
            held = slice(first - self._first, None)
            self.keys = grown(self.keys[..., held, :], num_held, keys, num_rows)
            self.values = grown(self.values[..., held, :], num_held, values, num_rows)
        else:
            self.keys, self.values = (grown(None, 0, rows, num_rows) for rows in (keys, values))
        self._first = first

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What the last pass sees, again, for layers of mlx-lm's that share another one's."""
        assert self.keys is not None
        assert self.values is not None
        rows = slice(self._seen_from - self._first, self.offset - self._first)
        return self.keys[..., rows, :], self.values[..., rows, :]

    def make_mask(
        self, num_rows: int, window_size: int | None = None, return_array: bool = False
    ) -> str | mx.array | None:
        """The mask of a pass of `num_rows` rows, for mlx-lm's models.

        window_size: of a layer that sees less than this cache holds. RollbackError where it is
        more: a block would see what single tokens do not.
        """
        window, first = window_size or self.window, self._oldest(self.offset)
        if window > self.window:
            raise RollbackError(
                f"{self.name}: the model masks a window of {window} tokens and keeps "
                f"{self.window}, so several tokens at once would see more than one by one. "
                "It is not decoded."
            )
        hides_some = self.offset + num_rows - first > window
        if hides_some or (return_array and num_rows > 1):
            return window_mask(first, self.offset, num_rows, window)
        return "causal" if num_rows > 1 else None

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate."""
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def reaches(self, length: int) -> bool:
        """Whether all that a token behind this length would see is still held."""
        return super().reaches(length) and (length == 0 or self._oldest(length) >= self._first)

    def rewind(self, length: int) -> None:
        super().rewind(length)
        if length == 0:
            self.keys, self.values, self._first = None, None, 0

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """Where it stands now and what the next token sees; the rows before that too if `whole`."""
        if self.keys is None or self.values is None:
            return Snapshot((self.offset,), ())
        oldest = self._oldest(self.offset) - (ROOM if whole else 0)
        rows = slice(max(oldest - self._first, 0), self.offset - self._first)
        # A view would hold the whole buffer.
        held = tuple(mx.contiguous(array[..., rows, :]) for array in (self.keys, self.values))
        return Snapshot((self.offset,), held)

    def _fill(self, length: int, arrays: tuple[mx.array, ...]) -> None:
        keys, values = (in_type(rows, self.dtype) for rows in arrays)
        num_rows = keys.shape[2]
        self.keys, self.values = (grown(rows, num_rows, rows, num_rows) for rows in (keys, values))
        self._first = length - num_rows
