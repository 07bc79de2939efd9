"""mlx-lm's attention over keys and values that are kept in another type than they come in.

Given arrays of several types MLX brings all to the largest one, so with queries in float32 and a
cache in float16 every pass would make a float32 copy of the whole cache. Here the queries are
brought to the cache's type and the result back: a row of each.
"""

import functools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.models.rebound import rebound

ATTEND = "scaled_dot_product_attention"  # what mlx-lm's modules call it


def attends_as_kept(model: nn.Module) -> None:
    """Have every attention of a model go by the type that its cache keeps. Does nothing twice.

    A module's class becomes a subclass of the one it had; its code and its parameters stay.
    """
    modules: list[Any] = [module for _, module in model.named_modules()]
    for module in modules:
        code = getattr(type(module).__call__, "__code__", None)
        if code is not None and ATTEND in code.co_names and not hasattr(module, "attends_as_kept"):
            module.__class__ = _as_kept(module.__class__)


@functools.cache
def _as_kept(base: Any) -> Any:
    """The class of an attention with queries in the type of its cache."""
    run = base.__call__
    attend = _in_type_of_keys(run.__globals__[ATTEND])
    methods = {"__call__": rebound(run, **{ATTEND: attend}), "attends_as_kept": True}
    return type(base.__name__, (base,), methods)


def _in_type_of_keys(attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def attend_as_kept(queries: mx.array, keys: Any, *args: Any, **kwargs: Any) -> mx.array:
        if not isinstance(keys, mx.array):  # quantised ones, of which MLX has products of its own
            return attend(queries, keys, *args, **kwargs)
        found = attend(queries.astype(keys.dtype), keys, *args, **kwargs)
        return found.astype(queries.dtype)

    return attend_as_kept
