"""Attention state that can undo the tail of its last pass.

A cache holds committed tokens plus, between a pass and `keep`, the rows of that pass. Undoing
moves the offset: rows behind it are stale and the next pass overwrites them. The class answers
mlx-lm's cache calls (`offset`, `update_and_fetch`, `make_mask`) so that its models can use it.
"""

import mlx.core as mx

from mtplx.cache.rows import RowCache, grown, in_type, window_mask
from mtplx.speculation import Snapshot


class AttentionCache(RowCache):
    """Keys and values [1, H, T, D] of one attention layer.

    dtype: of the rows that are kept and fetched; None is what they come in.
    """

    def __init__(self, name: str = "attention", dtype: mx.Dtype | None = None) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the rows of one pass; return all rows, [1, H, offset, D] each."""
        keys, values = in_type(keys, self.dtype), in_type(values, self.dtype)
        start, end = self.offset, self.offset + keys.shape[2]
        if self.keys is None or self.values is None or end > self.keys.shape[2]:
            self.keys = grown(self.keys, start, keys, end)
            self.values = grown(self.values, start, values, end)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self._append(end - start)
        return self.keys[..., :end, :], self.values[..., :end, :]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All rows again, for layers of mlx-lm's that share another one's."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[..., : self.offset, :], self.values[..., : self.offset, :]

    def make_mask(
        self, num_rows: int, return_array: bool = False, window_size: int | None = None
    ) -> str | mx.array | None:
        """The mask of a pass of `num_rows` rows, for mlx-lm's models."""
        if window_size is not None:
            return window_mask(0, self.offset, num_rows, window_size)
        if num_rows == 1:
            return None
        return window_mask(0, self.offset, num_rows) if return_array else "causal"

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate."""
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """Where it stands now; the rows as well if `whole`, else they have to stay held here."""
        rows = self.keys_and_values() if whole and self.keys is not None else ()
        return Snapshot((self.offset,), rows)

    def _fill(self, length: int, arrays: tuple[mx.array, ...]) -> None:
        keys, values = (in_type(rows, self.dtype) for rows in arrays)
        self.keys, self.values = (grown(rows, length, rows, length) for rows in (keys, values))


class ChunkedCache(AttentionCache):
    """Of a layer that attends within chunks of the text (Llama 4).

    Rows before the current chunk stay, because going back may need them; the model masks them.
    """

    start_position = 0  # of the first row, to mlx-lm's model

    def maybe_trim_front(self) -> None:
        """mlx-lm drops the rows of earlier chunks here."""
