"""A tuning run under way: what was measured so far, in which order, and how much time is left."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mtplx.draft_options import DraftOptions
from mtplx.errors import MtplxError
from mtplx.tuner.plan import Plan
from mtplx.tuner.trial import PRODUCT, WARM_UP, Bench, Cell, Sample, Trial

WARM_UP_TOKENS = 8
_T = TypeVar("_T")


class BudgetEndedError(MtplxError):
    """The time is over before there is a verdict."""


def shuffled(items: Sequence[_T], numbers: random.Random) -> list[_T]:
    """The items in an order of chance."""
    return numbers.sample(list(items), len(items))


@dataclass(slots=True)
class Session:
    """told: called with each trial as it is done. num_tokens: of a reply.

    asked, spent_s: the tokens that replies of arms were to have, and the wall time they took.
    """

    bench: Bench
    plan: Plan
    told: Callable[[Trial], None]
    num_tokens: int = WARM_UP_TOKENS
    trials: list[Trial] = field(default_factory=list)
    asked: int = 0
    spent_s: float = 0.0
    numbers: random.Random = field(init=False)
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.plan.seed)
        self.started_s = self.bench.now_s()

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return self.plan.budget_s - (self.bench.now_s() - self.started_s)

    def open(self, cell: Cell) -> None:
        """Read the cell's prompt if need be; a plain and a deep reply then warm it up."""
        if not self.bench.open(cell):
            return
        for depth in (0, self.plan.max_depth):
            self._check_time()
            at_s = self.bench.now_s() - self.started_s
            sample = self.bench.reply(cell, depth, 0, WARM_UP_TOKENS, self.plan.draft)
            self._add(Trial(WARM_UP, cell, depth, 0, at_s, sample))

    def take(
        self,
        stage: str,
        cell: Cell,
        depth: int,
        turn: int,
        draft: DraftOptions | None = None,
        lever: str = "",
    ) -> Trial:
        """One reply. turn: replies of the same turn in a cell have the same seed.

        draft, lever: another way of drafting than the user's, and its name; PRODUCT is plain
        decoding outside of the tuner.
        Raises BudgetEndedError where there is no time left to begin it.
        """
        self._check_time()
        seed, at_s = self._seed(cell, turn), self.bench.now_s() - self.started_s
        if lever == PRODUCT:
            sample = self.bench.plain(cell, seed, self.num_tokens)
        else:
            options = draft or self.plan.draft
            sample = self.bench.reply(cell, depth, seed, self.num_tokens, options)
            self.asked += self.num_tokens
            self.spent_s += self.bench.now_s() - self.started_s - at_s
        return self._add(Trial(stage, cell, depth, seed, at_s, sample, lever))

    def _seed(self, cell: Cell, turn: int) -> int:
        place = self.plan.classes.index(cell.kind)
        return 10_000 * self.plan.seed + 1000 * place + turn

    def _check_time(self) -> None:
        if self.left_s <= 0:
            raise BudgetEndedError(
                f"The budget of {self.plan.budget_s:g} s ended before there was a verdict. Nothing "
                "was saved; what was there before is as it was. Give more time with --budget."
            )

    def _add(self, trial: Trial) -> Trial:
        self.trials.append(trial)
        self.told(trial)
        return trial


def pooled(trials: Sequence[Trial]) -> Sample:
    """Several replies as one long one."""
    samples = [trial.sample for trial in trials]
    length = max(len(sample.drafted) for sample in samples)

    def summed(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
        padded = [[*row, *[0] * (length - len(row))] for row in rows]
        return tuple(sum(column) for column in zip(*padded, strict=True))

    return Sample(
        num_tokens=sum(s.num_tokens for s in samples),
        num_rounds=sum(s.num_rounds for s in samples),
        decode_s=sum(s.decode_s for s in samples),
        draft_s=sum(s.draft_s for s in samples),
        verify_s=sum(s.verify_s for s in samples),
        num_from_head=sum(s.num_from_head for s in samples),
        drafted=summed([s.drafted for s in samples]),
        accepted=summed([s.accepted for s in samples]),
    )
