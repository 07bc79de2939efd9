"""Whether a depth that promised most really is faster: fresh replies, in pairs with plain ones.

A pair is measured back to back, its order turned from pair to pair, so that a machine which slows
down steadily slows both sides of the comparison by as much.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtplx.tuner.session import BudgetEndedError, Session, shuffled
from mtplx.tuner.trial import CHECK, CONFIRM, PRODUCT, Cell, Trial

MIN_PAIRS, MAX_PAIRS = 4, 12
NUM_CHECKS = 4
_FIRST_TURN = 100  # seeds that the search did not have


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replies next to each other in time: plain and drafted, or once more and plain."""

    base: Trial
    other: Trial

    @property
    def ratio(self) -> float:
        """How many times as fast the other one is."""
        return self.other.sample.tokens_per_s / self.base.sample.tokens_per_s

    @property
    def log_ratio(self) -> float:
        return math.log(self.ratio)


def confirm(
    session: Session, depths: Mapping[Cell, int], num_pairs: int
) -> dict[Cell, tuple[Pair, ...]]:
    """Pairs of plain and drafted replies for each cell and the depth that promised most there.

    num_pairs: even, and fixed beforehand. Half of every cell's come before any second half. Where
    the time ends on the way, the cells that have enough pairs by then are given.
    Raises BudgetEndedError where none has.
    """
    pairs: dict[Cell, list[Pair]] = {cell: [] for cell in depths}
    begins_plain = {cell: session.numbers.random() < 0.5 for cell in depths}
    try:
        for turns in (range(num_pairs // 2), range(num_pairs // 2, num_pairs)):
            for cell in shuffled(list(depths), session.numbers):
                session.open(cell)
                for turn in turns:
                    plain_first = begins_plain[cell] == (turn % 2 == 0)
                    pairs[cell].append(_pair(session, cell, depths[cell], turn, plain_first))
    except BudgetEndedError:
        if all(len(found) < MIN_PAIRS for found in pairs.values()):
            raise
    return {
        cell: tuple(found[: len(found) // 2 * 2])
        for cell, found in pairs.items()
        if len(found) >= MIN_PAIRS
    }


def _pair(session: Session, cell: Cell, depth: int, turn: int, plain_first: bool) -> Pair:
    order = (0, depth) if plain_first else (depth, 0)
    done = {each: session.take(CONFIRM, cell, each, _FIRST_TURN + turn) for each in order}
    return Pair(done[0], done[depth])


def check_plain(session: Session, cell: Cell) -> tuple[Pair, ...]:
    """The tuner's plain arm against the product's plain decoding, timed from outside."""
    session.open(cell)
    pairs = []
    for turn in range(NUM_CHECKS):
        order = (PRODUCT, "") if turn % 2 else ("", PRODUCT)
        done = {
            name: session.take(CHECK, cell, 0, 2 * _FIRST_TURN + turn, lever=name) for name in order
        }
        pairs.append(Pair(done[PRODUCT], done[""]))
    return tuple(pairs)


def ratios(pairs: Sequence[Pair]) -> list[float]:
    """How many times as fast the other side is, pair by pair."""
    return [pair.ratio for pair in pairs]
