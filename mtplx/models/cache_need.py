"""What the state of a model takes for each token of context, and once, from its shapes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtplx.cache import STEP, CacheGroup, RecurrentCache, WindowCache
from mtplx.cache.window import ROOM
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """Bytes of state.

    per_token: keys and values, or latent rows, of layers that keep every token. windows: when they
    are full. recurrent: whatever the length, and once more for each place to come back to.
    """

    per_token: int = 0
    windows: int = 0
    recurrent: int = 0

    def __add__(self, other: "CacheNeed") -> "CacheNeed":
        return CacheNeed(
            self.per_token + other.per_token,
            self.windows + other.windows,
            self.recurrent + other.recurrent,
        )


def model_need(model: Any, kv_dtype: mx.Dtype | None = None) -> CacheNeed:
    """The need of a model of mlx-lm's; its parameters may be lazy, and nothing is computed.

    kv_dtype: what keys and values are kept in, None for what they are computed in.
    Raises UnsupportedTensorError for a kind of state that cannot be undone.
    """
    caches = layer_caches(model, kv_dtype=kv_dtype)
    model(mx.array([[0]]), cache=caches)
    return caches_need(caches)


def caches_need(caches: Iterable[LayerCache]) -> CacheNeed:
    """The need of caches that have seen one row, which need not have been evaluated."""
    return sum(map(_need, caches), CacheNeed())


def _need(cache: LayerCache) -> CacheNeed:
    if isinstance(cache, CacheGroup):
        return caches_need(cache.members)
    if isinstance(cache, RecurrentCache):
        return CacheNeed(recurrent=cache.num_bytes)
    row = cache.num_bytes // STEP  # buffers grow by so many rows at once
    if isinstance(cache, WindowCache):
        return CacheNeed(windows=row * (cache.window + ROOM + STEP))
    return CacheNeed(per_token=row)
