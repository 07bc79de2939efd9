"""Mamba 2 mixers of mlx-lm's that compute a short block as they compute single tokens.

For one token they step the recurrence, for several they compute it as a masked product (Dao and Gu,
arXiv 2405.21060, section 6), which rounds otherwise. A verify pass has a few rows only: stepping
those gives the bits of plain decoding, and the projections, which are what reads the weights, are
still of the whole block.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mtplx.cache import RecurrentCache

MAX_ROWS = 17  # of the longest round; a prompt's passes are longer


def stepping(base: Any) -> dict[str, Callable[..., Any]]:
    """The methods that a mixer's class has to have in place of `base`'s; none for other kinds."""
    run = getattr(base, "_ssm", None)
    if run is None:
        return {}

    def stepped(
        self: Any, x: mx.array, b: mx.array, c: mx.array, dt: mx.array, cache: Any, mask: Any
    ) -> Any:
        num_rows = x.shape[1]
        if not isinstance(cache, RecurrentCache) or not 1 < num_rows <= MAX_ROWS:
            return run(self, x, b, c, dt, cache, mask)
        rows = zip(*(mx.split(array, num_rows, axis=1) for array in (x, b, c, dt)), strict=True)
        return mx.concatenate([run(self, *row, cache, None) for row in rows], axis=1)

    return {"_ssm": stepped}
