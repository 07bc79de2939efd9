"""Layer caches that can undo the tail of their last pass, one kind of state a module."""

from mtplx.cache.attention import AttentionCache, ChunkedCache
from mtplx.cache.group import CacheGroup, single_caches
from mtplx.cache.quantised import QuantisedCache
from mtplx.cache.recurrent import MixerCall, RecurrentCache
from mtplx.cache.rows import STEP
from mtplx.cache.sinks import SinkCache
from mtplx.cache.window import WindowCache

__all__ = [
    "STEP",
    "AttentionCache",
    "CacheGroup",
    "ChunkedCache",
    "MixerCall",
    "QuantisedCache",
    "RecurrentCache",
    "SinkCache",
    "WindowCache",
    "single_caches",
]
