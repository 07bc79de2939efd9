"""What is measured: one reply in one cell at one depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtplx.bench.measure import Progress
from mtplx.draft_options import DraftOptions
from mtplx.kernels.product import RowTile

PRODUCT = "product"  # in place of a lever: plain decoding without anything of the tuner's
WARM_UP, SEARCH, CONFIRM, CHECK, LEVER = "warm-up", "search", "confirm", "check", "lever"


@dataclass(frozen=True, slots=True)
class Cell:
    """A class of content at a context, with the prompt that stands for it.

    context: tokens, as they were asked for. token_ids: the prompt, about so long.
    """

    kind: str
    context: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply.

    decode_s: all of it after prefill; draft_s and verify_s are parts of that, and the rest is the
        law, the read and the host. num_from_head: drafted by the head, the others by lookup.
    drafted, accepted: tokens by their place in the draft.
    """

    num_tokens: int
    num_rounds: int
    decode_s: float
    draft_s: float
    verify_s: float
    num_from_head: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.decode_s


@dataclass(frozen=True, slots=True)
class Trial:
    """A reply and where it stands in the run.

    stage: what it was for; "warm-up" counts for nothing. at_s: when it began, since the run did.
    lever: which way of drafting was tried; "" is the user's own.
    """

    stage: str
    cell: Cell
    depth: int
    seed: int
    at_s: float
    sample: Sample
    lever: str = ""


@dataclass(frozen=True, slots=True)
class TileStep:
    """How far the timing of kernels has come: the steps that are done, of all, and the packing of
    the weights that it is at. at_s: as of a trial."""

    packing: str
    done: int
    total: int
    at_s: float


class Bench(Protocol):
    """Where replies are measured, and the clock that the budget is taken from."""

    def now_s(self) -> float: ...

    def tiles(self, progress: Progress) -> Mapping[str, RowTile]:
        """Find the tiles that the model's kernels are fastest with, and use them from now on: by
        packing, those that are not the usual ones. progress: as for tiles.best_tiles."""

    def open(self, cell: Cell) -> bool:
        """Make ready for replies in this cell; whether its prompt is still to be read."""

    def reply(
        self, cell: Cell, depth: int, seed: int, num_tokens: int, draft: DraftOptions
    ) -> Sample:
        """A reply on the path that users get, at a fixed depth; 0 is plain decoding."""

    def plain(self, cell: Cell, seed: int, num_tokens: int) -> Sample:
        """Plain decoding once more, without anything of the tuner's, timed from outside."""

    def passes_s(self, cell: Cell, max_depth: int) -> Sequence[float]:
        """Seconds of target passes of 1, 2, … max_depth + 1 rows behind the cell's prompt."""
