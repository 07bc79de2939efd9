"""Recurrent mixers of mlx-lm's that record what undoing a pass takes.

A mixer is wrapped in place: its class becomes a subclass of the one it had, so that its parameters
keep their names and it computes what it always did, by its own code. In a pass the outputs of its
projections and convolutions are noted, by reference. Playing the call again on its first rows takes
them from there, so that what is computed anew is the recurrence and no weight matrix is read.
"""

import functools
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtplx.cache import CacheGroup, MixerCall, RecurrentCache
from mtplx.errors import RollbackError
from mtplx.kernels.source import Maker
from mtplx.models.gated_delta import Recurrence, Writing, recurrence, with_rule
from mtplx.models.packed import PackedLinear, held_arrays
from mtplx.models.stepwise import stepping

Run = Callable[..., mx.array]

# Modules that read a matrix of weights and work on each row by itself, or on it and rows before.
PROJECTIONS = {
    "Linear",
    "QuantizedLinear",
    "AllToShardedLinear",
    "ShardedToAllLinear",
    "QuantizedAllToShardedLinear",
    "QuantizedShardedToAllLinear",
    "Conv1d",
}
# Of a mixer's weights; where less is in its projections, playing a call again counts as a replay.
TAPED_SHARE = 0.95


class Projecting(Protocol):
    """Who gives what a projection makes of its input."""

    def project(self, module: nn.Module, run: Run, x: mx.array) -> mx.array: ...

    def note(self, written: Writing | None, after: mx.array) -> None:
        """Keep what a recurrence wrote and left, in the order of calls."""

    def noted(self) -> tuple[Writing, int] | None:
        """What the recurrence wrote that is played, and the number of tokens to play; None where
        it has to be computed."""


@dataclass(slots=True)
class Tape:
    """What the projections of a mixer gave in one pass, each in the order of its calls, and what
    its recurrences wrote."""

    outputs: dict[int, list[mx.array]] = field(default_factory=lambda: defaultdict(list))
    writings: list[Writing | None] = field(default_factory=list)
    left: list[mx.array] = field(default_factory=list)  # states that recurrences left
    conv_inputs: list[mx.array] = field(default_factory=list)

    def project(self, module: nn.Module, run: Run, x: mx.array) -> mx.array:
        output = run(module, x)
        self.outputs[id(module)].append(output)
        if type(module).__name__ == "Conv1d":
            self.conv_inputs.append(x)
        return output

    def note(self, written: Writing | None, after: mx.array) -> None:
        self.writings.append(written)
        self.left.append(after)

    def recurrence(self, state: RecurrentCache, num_rows: int) -> Recurrence | None:
        """A way to undo the pass without the mixer, where it is known to be all there is."""
        if len(self.writings) != 1 or len(self.conv_inputs) != 1 or self.writings[0] is None:
            return None
        return recurrence(
            self.writings[0], self.left[0], self.conv_inputs[0], state.arrays, num_rows
        )

    def noted(self) -> None:
        return None


@dataclass(slots=True)
class Playback:
    """The first rows of what is on a tape; what is not on it is computed."""

    tape: Tape
    num_rows: int  # of the pass that was recorded, two or more
    num_tokens: int  # to play
    num_missing: int = 0
    _taken: Counter[int] = field(default_factory=Counter)
    _num_noted: int = 0

    def project(self, module: nn.Module, run: Run, x: mx.array) -> mx.array:
        output = self._next(self.tape.outputs.get(id(module), []), self._taken[id(module)])
        self._taken[id(module)] += 1
        if output is None:
            self.num_missing += 1
            return run(module, x)
        return output

    def note(self, written: Writing | None, after: mx.array) -> None:
        pass

    def noted(self) -> tuple[Writing, int] | None:
        written = self.tape.writings[self._num_noted] if self.tape.writings else None
        self._num_noted += 1
        return None if written is None else (written, self.num_tokens)

    def _next(self, outputs: list[mx.array], index: int) -> mx.array | None:
        if index >= len(outputs):
            return None
        output = outputs[index]
        if output.ndim == 3 and output.shape[1] == self.num_rows:
            return output[:, : self.num_tokens]
        is_one_row = output.ndim == 2 or (output.ndim == 3 and output.shape[1] == 1)
        return output if is_one_row and len(outputs) == self.num_rows else None


@dataclass(slots=True)
class Recorder:
    """What the projections of a model's mixers are played from or noted on at the moment."""

    tape: Projecting | None = None


@dataclass(slots=True)
class RecordedCall:
    """A mixer's part in a pass (cache.MixerCall)."""

    mixer: Any  # mlx_lm's module
    run: Run
    arguments: Mapping[str, Any]
    num_rows: int
    recorder: Recorder
    tape: Tape = field(default_factory=Tape)
    recurrence: Recurrence | None = None

    def is_of_same_mixer(self, other: MixerCall) -> bool:
        return isinstance(other, RecordedCall) and other.mixer is self.mixer

    def replay(self, num_tokens: int, state: RecurrentCache) -> bool:
        if self.recurrence is not None:
            for index, array in self.recurrence.arrays_after(num_tokens).items():
                state[index] = array
            return False
        playback = Playback(self.tape, self.num_rows, num_tokens)
        arguments = {
            name: self._first(name, value, num_tokens, state)
            for name, value in self.arguments.items()
        }
        self.recorder.tape = playback
        try:
            self.run(self.mixer, **arguments)
        finally:
            self.recorder.tape = None
        return playback.num_missing > 0 or self.mixer.reads_weights

    def _first(self, name: str, value: Any, num_tokens: int, state: RecurrentCache) -> Any:
        """An argument for the first rows alone."""
        if name == "mask":
            return None  # of attention beside the state, which does not depend on it
        if isinstance(value, mx.array):
            return value[:, :num_tokens]
        if isinstance(value, CacheGroup):
            start = value.offset - self.num_rows
            return [state if _is_recurrent(m) else _Unread(start) for m in value.members]
        return state if _is_recurrent(value) else value


@dataclass(frozen=True, slots=True)
class _Unread:
    """Stands in for the keys and values beside a recurrent state, whose attention nobody reads."""

    offset: int

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values


def _is_recurrent(cache: Any) -> bool:
    return isinstance(cache, RecurrentCache)


def _state_in(cache: Any) -> RecurrentCache | None:
    """The recurrent state that a mixer was given, alone or in a group."""
    members: tuple[Any, ...] = cache.members if isinstance(cache, CacheGroup) else (cache,)
    return next((member for member in members if isinstance(member, RecurrentCache)), None)


def _num_rows(arguments: Mapping[str, Any], name: str) -> int:
    """Rows of the pass, from a mixer's arguments, all of which have to be cut to its first ones."""
    arrays = {n: a for n, a in arguments.items() if isinstance(a, mx.array) and n != "mask"}
    rows = {array.shape[1] if array.ndim > 1 else None for array in arrays.values()}
    others = [n for n, a in arguments.items() if isinstance(a, list | tuple | dict)]
    if len(rows) != 1 or None in rows or others:
        shapes = ", ".join(f"{n} {list(array.shape)}" for n, array in arrays.items())
        raise RollbackError(
            f"{name}: the layer takes {shapes or 'no rows'} {' '.join(others)}".rstrip()
            + ", which cannot be cut to the first rows of a pass. Such a model is not decoded."
        )
    return int(rows.pop() or 0)


@functools.cache
def _recording(base: Any) -> Any:
    """The class of a mixer that records its calls with a RecurrentCache; with another cache, or
    without one, it is as it was."""
    names = list(inspect.signature(base.__call__).parameters)[1:]
    run = base.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        state = _state_in(arguments.get("cache"))
        if state is None:
            return run(self, *args, **kwargs)
        recorded = RecordedCall(
            self, self.run_recorded, arguments, _num_rows(arguments, state.name), self.recorder
        )
        state.begin_call(recorded)
        self.recorder.tape = recorded.tape
        try:
            output = self.run_recorded(self, *args, **kwargs)
        finally:
            self.recorder.tape = None
        recorded.recurrence = recorded.tape.recurrence(state, recorded.num_rows)
        state.end_call()
        return output

    methods = {"__call__": call, "records": True, **stepping(base)}
    return type(base.__name__, (base,), methods)


@functools.cache
def _taped(base: Any) -> Any:
    """The class of a projection whose outputs a recorder notes."""
    run = base.__call__

    def call(self: Any, x: mx.array) -> Any:
        tape = self.recorder.tape
        return run(self, x) if tape is None else tape.project(self, run, x)

    return type(base.__name__, (base,), {"__call__": call, "records": True})


def record(mixer: nn.Module, recorder: Recorder, maker: Maker | None = None) -> None:
    """Have a mixer record its calls, and its projections their outputs. Does nothing twice.

    maker: who runs kernels, where it is not MLX on a Mac's GPU.
    """
    if getattr(mixer, "records", False):
        return
    modules: list[Any] = [module for _, module in mixer.named_modules()]
    taped = [module for module in modules if _is_projection(module)]
    for module in taped:
        if not getattr(module, "records", False):
            module.recorder = recorder
            module.__class__ = _taped(module.__class__)
    (own,) = modules[:1]
    share = sum(map(_num_weights, taped)) / max(_num_weights(mixer), 1)
    own.reads_weights = share < TAPED_SHARE
    own.recorder = recorder
    own.run_recorded = with_rule(type(own).__call__, recorder, maker)
    own.__class__ = _recording(own.__class__)


def _is_projection(module: Any) -> bool:
    kind = type(module)
    is_mlx = kind.__module__.startswith("mlx.nn.") or getattr(module, "records", False)
    return isinstance(module, PackedLinear) or (is_mlx and kind.__name__ in PROJECTIONS)


def _num_weights(module: nn.Module) -> int:
    """Bytes of its matrices, which is where the weights are."""
    arrays: list[tuple[str, mx.array]] = tree_flatten(module.parameters())  # type: ignore[assignment]
    matrices = [*(array for _, array in arrays), *held_arrays(module)]
    return sum(a.nbytes for a in matrices if sum(size > 1 for size in a.shape) > 1)
