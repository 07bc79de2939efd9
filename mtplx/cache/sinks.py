"""Attention that may see the first tokens and the last ones only, for drafts behind a long text.

The rows in between stay held, so undoing and going back are those of plain attention state; a pass
only does not read them (attention sinks, Xiao et al., arXiv 2309.17453). It changes what a head
drafts and never what is emitted, and it may be changed between any two passes.
"""

import mlx.core as mx

from mtplx.cache.attention import AttentionCache

SINKS = 4  # first tokens that are always seen


class SinkCache(AttentionCache):
    """Keys and values [1, H, T, D]. window: each row sees `SINKS` rows and so many before it, its
    own included; None is all of them. dtype: as of AttentionCache."""

    def __init__(
        self, name: str = "sinks", window: int | None = None, dtype: mx.Dtype | None = None
    ) -> None:
        super().__init__(name, dtype)
        self.window = window

    def hides(self, num_rows: int) -> bool:
        """Whether a pass of so many rows reads less than is held."""
        return self.window is not None and self.offset + num_rows > SINKS + self.window

    def _oldest(self, offset: int) -> int:
        """The first position behind the sinks that a row at `offset` sees."""
        return SINKS if self.window is None else max(SINKS, offset + 1 - self.window)

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
    ) -> str | mx.array | None:
        """The mask of a pass of `num_rows` rows over what it fetches, for mlx-lm's models."""
        if not self.hides(num_rows):
            return super().make_mask(num_rows, return_array, window_size)
        return self.seen(num_rows) if num_rows > 1 else None

    def seen(self, num_rows: int) -> mx.array:
        """Which of the rows that a pass fetches each of its rows sees, [T, S] bool."""
        assert self.window is not None
        rows = mx.arange(self.offset, self.offset + num_rows)[:, None]
        recent = mx.arange(self._oldest(self.offset), self.offset + num_rows)
        columns = mx.concatenate([mx.arange(min(SINKS, self.offset + num_rows)), recent])
        return (columns <= rows) & ((columns < SINKS) | (rows < columns + self.window))
