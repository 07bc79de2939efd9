"""Attention state in 8 or 4 bits: half or a quarter of the memory, and of what a token reads.

Each row is quantised by itself, so what a row becomes does not depend on the pass it came in.
"""

import mlx.core as mx

from mtplx.cache.rows import RowCache, grown, window_mask
from mtplx.speculation import Snapshot

Packed = tuple[mx.array, mx.array, mx.array]
"""Codes, scales and biases of MLX's affine groups, each [1, H, T, ...]."""


class QuantisedCache(RowCache):
    """Keys and values of one attention layer in MLX's affine groups.

    mlx-lm's attention knows such a cache by its `bits` and `group_size`.
    """

    def __init__(self, name: str = "attention", *, bits: int = 8, group_size: int = 64) -> None:
        super().__init__(name)
        self.bits, self.group_size = bits, group_size
        self._arrays: tuple[mx.array, ...] = ()  # of the keys, then of the values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Packed, Packed]:
        """Append the rows of one pass; return all rows."""
        start, end = self.offset, self.offset + keys.shape[2]
        new = [
            array
            for rows in (keys, values)
            for array in mx.quantize(rows, group_size=self.group_size, bits=self.bits)
        ]
        if not self._arrays or end > self._arrays[0].shape[2]:
            held = self._arrays or (None,) * len(new)
            pairs = zip(held, new, strict=True)
            self._arrays = tuple(grown(a, start, rows, end) for a, rows in pairs)
        for array, rows in zip(self._arrays, new, strict=True):
            array[..., start:end, :] = rows
        self._append(end - start)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Packed, Packed]:
        """All rows again."""
        rows = [array[..., : self.offset, :] for array in self._arrays]
        return (rows[0], rows[1], rows[2]), (rows[3], rows[4], rows[5])

    def make_mask(
        self, num_rows: int, return_array: bool = False, window_size: int | None = None
    ) -> str | mx.array | None:
        """The mask of a pass of `num_rows` rows, for mlx-lm's models."""
        if num_rows == 1 and window_size is None:
            return None
        if return_array or window_size is not None:
            return window_mask(0, self.offset, num_rows, window_size)
        return "causal"

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate."""
        return list(self._arrays)

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """Where it stands now; the rows as well if `whole`, else they have to stay held here."""
        rows = tuple(array[..., : self.offset, :] for array in self._arrays) if whole else ()
        return Snapshot((self.offset,), rows)

    def _fill(self, length: int, arrays: tuple[mx.array, ...]) -> None:
        self._arrays = tuple(grown(rows, length, rows, length) for rows in arrays)
