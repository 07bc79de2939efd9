"""Our caches for what a model of mlx-lm's asks for, each with its way of undoing a pass.

mlx-lm says by `make_cache` which kinds of state its layers keep. Keys and values move an offset
back, windows keep some rows more than they show, recurrent state is refolded from a tape
(`tape.py`). A kind without a way is refused by name, before anything is decoded.
"""

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.cache import (
    AttentionCache,
    CacheGroup,
    ChunkedCache,
    QuantisedCache,
    RecurrentCache,
    WindowCache,
)
from mtplx.errors import UnsupportedTensorError
from mtplx.kernels.source import Maker
from mtplx.models.tape import Recorder, record
from mtplx.speculation import LayerCache


def layer_caches(
    model: nn.Module, maker: Maker | None = None, kv_dtype: mx.Dtype | None = None
) -> list[LayerCache]:
    """Empty caches for a model of mlx-lm's, which can undo their last pass.

    The first time, the model's recurrent mixers are wrapped so that they record their passes; what
    they compute, and their parameters, stay as they are. maker: who runs their kernels, where it is
    not MLX on a Mac's GPU. kv_dtype: what keys and values are kept in, None for what they come in
    (where that is another, with `kept_attention`).
    Raises UnsupportedTensorError, naming the layer and its kind of state, where there is no way to
    undo it.
    """
    from mlx_lm.models.cache import make_prompt_cache

    asked = make_prompt_cache(model)
    if any(_is_recurrent(cache) for cache in asked) and not hasattr(model, "recorder"):
        recorder = Recorder()
        for mixer in _mixers(model):
            record(mixer, recorder, maker)
        model.recorder = recorder
    return [_ours(cache, f"layers.{i}", kv_dtype) for i, cache in enumerate(asked)]


def _ours(cache: Any, name: str, kv_dtype: mx.Dtype | None) -> LayerCache:
    from mlx_lm.models import cache as kinds

    kind = type(cache)
    if kind is kinds.KVCache or kind is kinds.ConcatenateKVCache:
        return AttentionCache(name, kv_dtype)
    if kind is kinds.QuantizedKVCache:
        return QuantisedCache(name, bits=cache.bits, group_size=cache.group_size)
    if kind is kinds.RotatingKVCache and cache.keep == 0:
        return WindowCache(cache.max_size, name, kv_dtype)
    if kind is kinds.ChunkedKVCache:
        return ChunkedCache(name, kv_dtype)
    if kind is kinds.ArraysCache:
        return _recurrent_class()(len(cache.cache), name)
    if kind is kinds.CacheList:
        pairs = enumerate(cache.caches)
        return CacheGroup([_ours(member, f"{name}.{i}", kv_dtype) for i, member in pairs], name)
    raise UnsupportedTensorError(
        f"{name} keeps its state in {kind.__name__}, which cannot be undone exactly yet, "
        "so this model is not decoded."
    )


@functools.cache
def _recurrent_class() -> type[RecurrentCache]:
    """RecurrentCache as some of mlx-lm's models insist on it: they look for an ArraysCache."""
    from mlx_lm.models.cache import ArraysCache

    return type("RecurrentCache", (RecurrentCache, ArraysCache), {})


def _is_recurrent(cache: Any) -> bool:
    from mlx_lm.models.cache import ArraysCache, CacheList

    if isinstance(cache, CacheList):
        return any(_is_recurrent(member) for member in cache.caches)
    return isinstance(cache, ArraysCache)


@dataclass(slots=True)
class _Watch:
    """Which modules are running, innermost last, and which of them wrote recurrent state."""

    running: list[nn.Module] = field(default_factory=list)
    writers: dict[int, nn.Module] = field(default_factory=dict)

    def note_write(self) -> None:
        if self.running:
            self.writers[id(self.running[-1])] = self.running[-1]


def _mixers(model: nn.Module) -> list[nn.Module]:
    """The modules that write recurrent state, found by watching a pass that nobody evaluates."""
    from mlx_lm.models.cache import make_prompt_cache

    watch = _Watch()
    watched: list[Any] = [m for _, m in model.named_modules() if _takes_cache(m.__class__)]
    before = [module.__class__ for module in watched]
    try:
        for module, kind in zip(watched, before, strict=True):
            module.watch = watch
            module.__class__ = _watched(kind)
        caches = [_watching(cache, watch) for cache in make_prompt_cache(model)]
        model(mx.array([[0, 0]]), cache=caches)
    finally:
        for module, kind in zip(watched, before, strict=True):
            module.__class__ = kind
            del module.watch
    return list(watch.writers.values())


@functools.cache
def _takes_cache(kind: Any) -> bool:
    call = getattr(kind, "__call__", None)  # noqa: B004  # its signature is what is asked for
    return call is not None and "cache" in inspect.signature(call).parameters


@functools.cache
def _watched(base: Any) -> Any:
    """The class of a module that tells when it runs."""
    run = base.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.watch.running.append(self)
        try:
            return run(self, *args, **kwargs)
        finally:
            self.watch.running.pop()

    return type(base.__name__, (base,), {"__call__": call})


def _watching(cache: Any, watch: _Watch) -> Any:
    """mlx-lm's cache, recurrent ones with a note of who writes to them."""
    from mlx_lm.models.cache import ArraysCache, CacheList

    if isinstance(cache, CacheList):
        return CacheList(*(_watching(member, watch) for member in cache.caches))
    if not isinstance(cache, ArraysCache):
        return cache

    class Watching(ArraysCache):  # type: ignore[misc]  # mlx_lm has no types
        def __setitem__(self, index: int, array: mx.array) -> None:
            watch.note_write()
            super().__setitem__(index, array)

    return Watching(len(cache.cache))
