"""Mistakes that are easily made, each as a small change of the code, and what it takes to call one
caught.

A change replaces a piece of a production function's source, so that whoever calls the function,
however it was imported, gets the mistake. The property beside it holds for the code as it is, as a
test of its own, and has to fail.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

from mtplx.errors import RollbackError

Property = Callable[[], None]
Change = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake and what catches it.

    change: puts the mistake into the code for as long as the context lasts.
    caught_by: the name of the test, and a call of it that fails then.
    row: the law and setting whose enumeration that is, where it is one.
    seen: the numbers of the faults of other runtimes (docs/exactness.md) that it stands for.
    """

    mistake: str
    change: Change
    caught_by: tuple[str, Property]
    row: tuple[str, str] | None = None
    seen: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.mistake

    def standing_for(self, *seen: int) -> "Mutant":
        """The same, as one of these faults of other runtimes."""
        return replace(self, seen=seen)

    def is_caught(self) -> bool:
        """Whether the property fails once the mistake is in the code, or the code itself sees that
        its layers do not hold what they should."""
        with self.change():
            try:
                self.caught_by[1]()
            except (AssertionError, RollbackError):
                return True
        return False


def edit(function: Callable[..., Any], *replacements: str) -> Change:
    """A change of a function's source: what stands there once, and what is put in its place."""
    original = cast("FunctionType", function)

    @contextmanager
    def changed() -> Iterator[None]:
        before = original.__code__
        original.__code__ = _edited(original, replacements).__code__
        try:
            yield
        finally:
            original.__code__ = before

    return changed


def swap(place: Any, name: str, replacement: Any) -> Change:
    """A change that puts something else under a name, for whoever looks it up there."""
    return lambda: patch.object(place, name, replacement)


def _edited(function: FunctionType, replacements: tuple[str, ...]) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {function.__qualname__}")
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec(
        compile(source, f"<mutant of {function.__qualname__}>", "exec"), function.__globals__, names
    )
    return cast("FunctionType", names[function.__name__])


def named(function: Callable[..., None], *arguments: Any) -> tuple[str, Property]:
    """A test and the parameters with which it is called, by name."""
    shown = ", ".join(map(str, arguments))
    file = inspect.getmodule(function)
    assert file is not None
    name = f"{file.__name__.rpartition('.')[2]}::{function.__name__}"
    return (f"{name}[{shown}]" if shown else name), lambda: function(*arguments)
