"""Places that a state can come back to whose layers do not keep every length.

Recurrent layers hold their last state and nothing before it, windows only their last rows. To
answer a prompt that shares only a beginning with what was read, a state is marked where a later
prompt is likely to branch off: at the end of a reply, at the end of a prompt, and a little before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx.speculation import Snapshot

MAX_CHECKPOINTS = 8
MAX_CHECKPOINT_BYTES = 512 << 20  # the newest stays whatever it takes
# The end of a prompt opens the reply. Templates often write that otherwise once the reply is there.
BEFORE_END = 32


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state after `length` tokens.

    drafter_rows: committed rows of the drafter at that moment.
    unseen: [n, D], the hidden rows after those, up to the last token; None where it was not fed.
    """

    length: int
    layers: tuple[Snapshot, ...]
    drafter: Snapshot | None = None
    drafter_rows: int = 0
    unseen: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """Every array of it."""
        parts = [*self.layers, *([] if self.drafter is None else [self.drafter])]
        unseen = [] if self.unseen is None else [self.unseen]
        return [*(array for part in parts for array in part.arrays), *unseen]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of one state, shortest first, of bounded number and size."""

    max_count: int = MAX_CHECKPOINTS
    max_bytes: int = MAX_CHECKPOINT_BYTES
    _held: tuple[Checkpoint, ...] = ()

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._held)

    def add(self, checkpoint: Checkpoint) -> None:
        """Take one in, in place of one of its length; the shortest go where there are too many."""
        others = [held for held in self._held if held.length != checkpoint.length]
        kept = sorted([*others, checkpoint], key=lambda held: held.length)
        while len(kept) > 1 and (len(kept) > self.max_count or _bytes(kept) > self.max_bytes):
            kept.pop(0)
        self._held = tuple(kept)

    def longest(self, length: int, *, fed: bool) -> Checkpoint | None:
        """The one of most tokens, at most `length`; with `fed` one that the drafter can go on
        from."""
        fitting = [
            held
            for held in self._held
            if held.length <= length and (held.unseen is not None or not fed)
        ]
        return fitting[-1] if fitting else None

    def forget_behind(self, length: int, drafter_rows: int) -> None:
        """Drop those of more tokens, or more of the drafter's rows: what they stand on is about to
        be overwritten."""
        self._held = tuple(
            held
            for held in self._held
            if held.length <= length and held.drafter_rows <= drafter_rows
        )

    @property
    def num_bytes(self) -> int:
        return _bytes(self._held)


def _bytes(checkpoints: Sequence[Checkpoint]) -> int:
    return sum(checkpoint.num_bytes for checkpoint in checkpoints)
