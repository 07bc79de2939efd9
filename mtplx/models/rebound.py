"""Functions of mlx-lm's in which a name means something of ours."""

from collections.abc import Callable
from types import FunctionType
from typing import Any


def rebound(run: Callable[..., Any], **meanings: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same code, in which these global names mean other functions."""
    changed = FunctionType(
        run.__code__,
        {**run.__globals__, **meanings},
        run.__name__,
        run.__defaults__,
        run.__closure__,
    )
    changed.__kwdefaults__ = run.__kwdefaults__
    return changed
