"""A bench without a model: costs and acceptance follow a script, and the clock is its own."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mtplx.bench.measure import Progress
from mtplx.draft_options import DraftOptions
from mtplx.kernels.product import RowTile
from mtplx.params import SamplingParams
from mtplx.tuner.plan import Plan
from mtplx.tuner.run import Outcome, tune
from mtplx.tuner.trial import Cell, Sample, TileStep, Trial

DRAFT = DraftOptions()
LIKELY = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
RATES = dict.fromkeys(("chat", "code", "structured", "prose"), LIKELY)
TILE_STEPS = 3  # for each packing
VERIFY_MS, DRAFT_MS, FIXED_MS = 20.0, 1.0, 0.5


@dataclass
class ScriptedBench:
    """verify_ms(rows, context) and draft_ms(context): what a pass and a drafted token take.

    acceptance: by class, for each place, given that the places before it were accepted.
    noise: of a reply's time, as a share. slowing: what each reply adds to the time of later ones.
    first_factor: of the first reply's time. plain_factor: of the time of plain replies in the
    tuner's own arm, and not in the product's. lever_factor: of the time of replies that are drafted
    in a given way. best_tiles: what it finds of kernels; compile_s: how long that takes for each of
    TILE_STEPS, by packing. drawn: whether acceptance is drawn or as
    expected.
    """

    acceptance: Mapping[str, Sequence[float]]
    verify_ms: Callable[[int, int], float] = lambda rows, context: VERIFY_MS * (1 + 0.05 * rows)
    draft_ms: Callable[[int], float] = lambda context: DRAFT_MS
    noise: float = 0.0
    slowing: float = 0.0
    first_factor: float = 1.0
    plain_factor: float = 1.0
    lever_factor: Callable[[DraftOptions], float] = lambda draft: 1.0
    best_tiles: Mapping[str, RowTile] = field(default_factory=dict)
    compile_s: Mapping[str, float] = field(default_factory=dict)
    drawn: bool = False
    seed: int = 0
    clock_s: float = 0.0
    num_replies: int = 0
    opened: list[Cell] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.seed)

    def now_s(self) -> float:
        return self.clock_s

    def tiles(self, progress: Progress) -> Mapping[str, RowTile]:
        total, done = TILE_STEPS * len(self.compile_s), 0
        for packing, step_s in self.compile_s.items():
            for _ in range(TILE_STEPS):
                progress(done, total, packing)
                self.clock_s += step_s
                done += 1
        if total:
            progress(total, total, packing)
        return self.best_tiles

    def open(self, cell: Cell) -> bool:
        if cell in self.opened:
            return False
        self.opened.append(cell)
        return True

    def reply(
        self, cell: Cell, depth: int, seed: int, num_tokens: int, draft: DraftOptions
    ) -> Sample:
        factor = self.plain_factor if depth == 0 else self.lever_factor(draft)
        return self._spent(cell, depth, num_tokens, factor)

    def plain(self, cell: Cell, seed: int, num_tokens: int) -> Sample:
        return self._spent(cell, 0, num_tokens, 1.0)

    def passes_s(self, cell: Cell, max_depth: int) -> Sequence[float]:
        return [self.verify_ms(rows, cell.context) / 1000 for rows in range(1, max_depth + 2)]

    def _spent(self, cell: Cell, depth: int, num_tokens: int, factor: float) -> Sample:
        rates = list(self.acceptance[cell.kind])[:depth]
        accepted, rounds = self._accepted(rates, num_tokens)
        factor *= 1 + self.slowing * self.num_replies
        factor *= self.first_factor if self.num_replies == 0 else 1.0
        factor *= max(1 + self.noise * self.numbers.gauss(0, 1), 0.1)
        verify_s = rounds * self.verify_ms(1 + depth, cell.context) / 1000 * factor
        draft_s = rounds * depth * self.draft_ms(cell.context) / 1000 * factor
        decode_s = verify_s + draft_s + rounds * FIXED_MS / 1000 * factor
        self.clock_s += decode_s
        self.num_replies += 1
        return Sample(
            num_tokens=rounds + sum(accepted),
            num_rounds=rounds,
            decode_s=decode_s,
            draft_s=draft_s,
            verify_s=verify_s,
            num_from_head=rounds * depth,
            drafted=(rounds,) * depth,
            accepted=tuple(accepted),
        )

    def _accepted(self, rates: Sequence[float], num_tokens: int) -> tuple[list[int], int]:
        """Accepted tokens by place, and rounds."""
        accepted, rounds = [0] * len(rates), 0
        if not self.drawn:
            rounds = 100  # the more, the closer to what is expected
            reached = 1.0
            for place, rate in enumerate(rates):
                reached *= rate
                accepted[place] = round(rounds * reached)
            return accepted, rounds
        while rounds + sum(accepted) < num_tokens:
            rounds += 1
            for place, rate in enumerate(rates):
                if self.numbers.random() >= rate:
                    break
                accepted[place] += 1
        return accepted, rounds


def plan(
    classes: Sequence[str] = ("chat", "code"),
    contexts: Sequence[int] = (1024,),
    budget_s: float = 3600.0,
    max_depth: int = 7,
    seed: int = 1,
    draft: DraftOptions = DRAFT,
) -> Plan:
    """What to measure, with time for everything."""
    return Plan(tuple(classes), tuple(contexts), SamplingParams(), draft, budget_s, max_depth, seed)


def cells(of: Plan) -> tuple[Cell, ...]:
    return tuple(Cell(kind, context) for context in of.contexts for kind in of.classes)


def run(
    bench: ScriptedBench, of: Plan, told: Callable[[Trial | TileStep], None] | None = None
) -> Outcome:
    """A whole run on the bench."""
    return tune(bench, cells(of), of, told or (lambda trial: None))


def chosen(outcome: Outcome) -> dict[tuple[str, int], int]:
    """The depth of every class and context."""
    return {(c.kind, c.context): c.depth for c in outcome.verdict.choices}
