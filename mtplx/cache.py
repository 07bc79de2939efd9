"""Attention state that can undo the tail of its last pass.

A cache holds committed tokens plus, between a pass and `keep`, the rows of that pass. Undoing
moves the offset: rows behind it are stale and the next pass overwrites them. The class answers
mlx-lm's cache calls (`offset`, `update_and_fetch`, `make_mask`) so that its models can use it.
"""

import mlx.core as mx

from mtplx.errors import RollbackError

STEP = 256  # rows by which the buffers grow


class AttentionCache:
    """Keys and values [1, H, T, D] of one attention layer."""

    def __init__(self, name: str = "attention") -> None:
        self.name = name
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0
        self._last_pass = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the rows of one pass; return all rows, [1, H, offset, D] each."""
        start, end = self.offset, self.offset + keys.shape[2]
        if self.keys is None or self.values is None or end > self.keys.shape[2]:
            self._grow(keys, values, end)
        assert self.keys is not None
        assert self.values is not None
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset, self._last_pass = end, end - start
        return self.keys[..., :end, :], self.values[..., :end, :]

    def _grow(self, keys: mx.array, values: mx.array, end: int) -> None:
        rows = -(-end // STEP) * STEP - self.offset
        grown = []
        for held, new in ((self.keys, keys), (self.values, values)):
            batch, heads, _, width = new.shape
            room = mx.zeros((batch, heads, rows, width), new.dtype)
            held_rows = [] if held is None else [held[..., : self.offset, :]]
            grown.append(mx.concatenate([*held_rows, room], axis=2))
        self.keys, self.values = grown

    def make_mask(
        self, num_rows: int, return_array: bool = False, window_size: int | None = None
    ) -> str | mx.array | None:
        """The mask of a pass of `num_rows` rows, for mlx-lm's models."""
        if window_size is not None:
            raise RollbackError(
                f"{self.name}: a sliding window of {window_size} has no undo strategy here, "
                "so this model cannot be decoded yet."
            )
        if num_rows == 1:
            return None
        if return_array:
            columns = mx.arange(self.offset + num_rows)
            return columns[None] <= mx.arange(self.offset, self.offset + num_rows)[:, None]
        return "causal"

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate."""
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def keep(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` rows of the last pass, or raise RollbackError if it had
        fewer."""
        if not 0 <= num_tokens <= self._last_pass:
            raise RollbackError(
                f"{self.name}: asked to keep {num_tokens} tokens of a pass of {self._last_pass}."
            )
        self.offset -= self._last_pass - num_tokens
        self._last_pass = 0

    def rewind(self, length: int) -> None:
        """Hold only the first `length` tokens. RollbackError if it never held so many."""
        if not 0 <= length <= self.offset:
            raise RollbackError(f"{self.name}: cannot go back to {length} of {self.offset} tokens.")
        self.offset, self._last_pass = length, 0
