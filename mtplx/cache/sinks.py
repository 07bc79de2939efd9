"""Attention that sees the first tokens and the last ones, for drafts behind a long text.

The rows in between stay held, so undoing and going back are those of plain attention state; a pass
only does not read them (attention sinks, Xiao et al., arXiv 2309.17453). It changes what a head
drafts and never what is emitted.
"""

import mlx.core as mx

from mtplx.cache.attention import AttentionCache

SINKS = 4  # first tokens that are always seen


class SinkCache(AttentionCache):
    """Keys and values [1, H, T, D]; each row of a pass sees `SINKS` rows and `window` rows."""

    def __init__(self, window: int, name: str = "sinks") -> None:
        super().__init__(name)
        self.window = window

    def _oldest(self, offset: int) -> int:
        """The first position behind the sinks that a row at `offset` sees."""
        return max(SINKS, offset + 1 - self.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the rows of one pass; return those that any of its rows sees."""
        oldest = self._oldest(self.offset)
        held = super().update_and_fetch(keys, values)
        if oldest == SINKS:
            return held
        seen_keys, seen_values = (
            mx.concatenate([rows[..., :SINKS, :], rows[..., oldest:, :]], axis=2) for rows in held
        )
        return seen_keys, seen_values

    def make_mask(
        self, num_rows: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The mask of a pass of `num_rows` rows over what it fetches, for mlx-lm's models."""
        if num_rows == 1:
            return None
        rows = mx.arange(self.offset, self.offset + num_rows)[:, None]
        recent = mx.arange(self._oldest(self.offset), self.offset + num_rows)
        columns = mx.concatenate([mx.arange(min(SINKS, self.offset + num_rows)), recent])
        return (columns <= rows) & ((columns < SINKS) | (rows < columns + self.window))
