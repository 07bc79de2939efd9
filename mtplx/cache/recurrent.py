"""State that every token overwrites: of convolutions, state-space and linear-attention mixers.

What a pass did cannot be taken out of such a state. So a pass keeps the state before it, by
reference, and its calls of the mixer; `keep` plays the accepted tokens through the mixer again from
there. What the mixer multiplied its weights with is on the call's tape, so that reads no weights.
"""

from typing import Protocol

import mlx.core as mx

from mtplx.errors import RollbackError
from mtplx.speculation import Snapshot


class MixerCall(Protocol):
    """A mixer's part in a pass, that can be played again."""

    @property
    def num_rows(self) -> int:
        """Tokens of the pass."""

    def is_of_same_mixer(self, other: "MixerCall") -> bool: ...

    def replay(self, num_tokens: int, state: "RecurrentCache") -> bool:
        """Move a state on by the first tokens of the pass; say whether that read weights."""


class RecurrentCache:
    """The arrays of one recurrent layer, by index, as mlx-lm's models read and write them."""

    keeps_every_length = False
    lengths = left_padding = None  # mlx-lm's, for batches of padded texts

    def __init__(self, num_arrays: int, name: str = "recurrent") -> None:
        self.name = name
        self.arrays: list[mx.array | None] = [None] * num_arrays
        self.offset = 0
        self.num_replays = 0  # calls that were played again at the price of reading weights
        self._start = 0  # tokens before the last pass
        self._before = list(self.arrays)  # the state then
        self._calls: list[MixerCall] = []  # of the last pass
        self._is_open = False  # within a call

    def __getitem__(self, index: int) -> mx.array | None:
        return self.arrays[index]

    def __setitem__(self, index: int, array: mx.array) -> None:
        if not self._is_open:
            raise RollbackError(
                f"{self.name}: the model writes recurrent state in a place that is not recorded, "
                "so it could not be undone. Such a model is not decoded."
            )
        self.arrays[index] = array

    def advance(self, num_tokens: int) -> None:
        """mlx-lm's, for batches of padded texts."""

    def make_mask(self, num_rows: int) -> None:
        """No row is padding."""

    def begin_call(self, call: MixerCall) -> None:
        """Record a call of a mixer before it changes anything."""
        if not self._calls or any(call.is_of_same_mixer(earlier) for earlier in self._calls):
            self._start, self._before, self._calls = self.offset, list(self.arrays), []
        self._calls.append(call)
        self._is_open = True

    def end_call(self) -> None:
        """The call has changed the state as it should."""
        self.offset = self._start + self._calls[-1].num_rows
        self._is_open = False

    @property
    def _last_pass(self) -> int:
        return self.offset - self._start if self._calls else 0

    def check(self, start: int, num_rows: int) -> None:
        """Raise RollbackError unless the last pass took `num_rows` tokens behind `start`."""
        rows = {call.num_rows for call in self._calls} or {0}
        if self._is_open or self.offset != start + num_rows or rows != {num_rows}:
            raise RollbackError(
                f"{self.name}: a pass of {num_rows} tokens after {start} should have been recorded "
                f"here, but this layer has seen {self.offset}, {self._last_pass} of them in its "
                "last pass. Nothing was kept; the model runs a layer twice, or not at all."
            )

    def keep(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens of the last pass, or raise RollbackError if it had
        fewer."""
        if not 0 <= num_tokens <= self._last_pass:
            raise RollbackError(
                f"{self.name}: asked to keep {num_tokens} tokens of a pass of {self._last_pass}."
            )
        self.rewind(self.offset - self._last_pass + num_tokens)

    def reaches(self, length: int) -> bool:
        """Whether this length is the beginning, the present or within the last pass."""
        recent = self._start if self._calls else self.offset
        return length == 0 or recent <= length <= self.offset

    def rewind(self, length: int) -> None:
        """Hold only the first `length` tokens. RollbackError where that cannot be done."""
        if not self.reaches(length):
            raise RollbackError(
                f"{self.name}: cannot go back to {length} of {self.offset} tokens, for recurrent "
                "state keeps no other length than its last pass's."
            )
        if length == 0:
            self.arrays = [None] * len(self.arrays)
        elif self._is_open or length < self.offset:
            self.arrays = self._refolded(length - self._start)
        self._settle(length)

    def _refolded(self, num_tokens: int) -> list[mx.array | None]:
        """The state after the first tokens of the last pass."""
        if num_tokens == 0:
            return list(self._before)
        state = type(self)(len(self.arrays), self.name)
        state.arrays, state._is_open = list(self._before), True
        for call in self._calls:
            self.num_replays += call.replay(num_tokens, state)
        return state.arrays

    def _settle(self, length: int) -> None:
        self.offset = self._start = length
        self._before, self._calls, self._is_open = list(self.arrays), [], False

    @property
    def state(self) -> list[mx.array]:
        """Arrays to evaluate."""
        return [array for array in self.arrays if array is not None]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """Where it stands now and its arrays, by reference: they are replaced, never changed."""
        held = tuple(array is not None for array in self.arrays)
        return Snapshot((self.offset, *held), tuple(self.state))

    def restore(self, snapshot: Snapshot) -> None:
        """Go to where a snapshot was taken."""
        length, *held = snapshot.numbers
        arrays = iter(snapshot.arrays)
        self.arrays = [next(arrays) if is_held else None for is_held in held]
        self._settle(length)
