"""A tuning run from beginning to end: warm-up, costs, search, confirmation, verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mtplx.costs import Priors
from mtplx.kernels.product import RowTile
from mtplx.profile import Interval
from mtplx.tuner.confirm import Pair, check_plain, confirm
from mtplx.tuner.curve import FittedCosts, fit_costs, fit_priors, with_window
from mtplx.tuner.levers import Lever, try_levers
from mtplx.tuner.plan import Plan
from mtplx.tuner.schedule import BRIEF, pairs_in_time, reply_length
from mtplx.tuner.search import search
from mtplx.tuner.session import Session, shuffled
from mtplx.tuner.trial import CONFIRM, SEARCH, Bench, Cell, TileStep, Trial
from mtplx.tuner.verdict import Verdict, decide, drift_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a run found.

    pairs: the confirming ones by cell. levers: other ways of drafting, None where there was no time
    for them. tiles: of kernels, by packing, where they are not the usual ones. num_tokens: of the
    last replies.
    """

    plan: Plan
    trials: tuple[Trial, ...]
    pairs: Mapping[Cell, Sequence[Pair]]
    verdict: Verdict
    costs: FittedCosts
    priors: Priors
    levers: tuple[Lever, ...] | None
    tiles: Mapping[str, RowTile]
    num_tokens: int
    took_s: float


def tune(
    bench: Bench, cells: Sequence[Cell], plan: Plan, told: Callable[[Trial | TileStep], None]
) -> Outcome:
    """Measure and decide.

    told: called with each trial, and before them while kernels are timed.
    Raises BudgetEndedError where the time does not suffice for a verdict, and UsageError where that
    is clear from the beginning.
    """
    session = Session(bench, plan, told)
    tiles = bench.tiles(partial(_tell_tiles, session, told))
    for cell in shuffled(cells, session.numbers):
        session.open(cell)
    passes_s = {
        cell.context: bench.passes_s(cell, plan.max_depth)
        for cell in {cell.context: cell for cell in cells}.values()
    }
    session.num_tokens = min(reply_length(session, len(cells)), BRIEF)
    checks = check_plain(session, min(cells, key=lambda cell: cell.context))
    order = shuffled(cells, session.numbers)
    found = {}
    for place, cell in enumerate(order):
        found[cell] = search(session, cell, partial(reply_length, session, len(cells) - place))
    depths = {cell: found[cell] for cell in cells}
    pairs, drift = _confirmed(session, {cell: depth for cell, depth in depths.items() if depth})
    verdict = decide(depths, pairs, checks, drift)
    levers = try_levers(session, verdict)
    counted = [trial for trial in session.trials if trial.stage in (SEARCH, CONFIRM)]
    costs = fit_costs(counted, passes_s)
    windows = {lever.flag for lever in levers or () if lever.wins and lever.window}
    if windows:
        costs = with_window(costs, [t for t in session.trials if t.lever in windows])
    return Outcome(
        plan=plan,
        trials=tuple(session.trials),
        pairs=pairs,
        verdict=verdict,
        costs=costs,
        priors=fit_priors(counted, plan.max_depth),
        levers=levers,
        tiles=tiles,
        num_tokens=session.num_tokens,
        took_s=plan.budget_s - session.left_s,
    )


def _tell_tiles(
    session: Session, told: Callable[[TileStep], None], done: int, total: int, packing: str
) -> None:
    told(TileStep(packing, done, total, session.plan.budget_s - session.left_s))


def _confirmed(
    session: Session, depths: Mapping[Cell, int]
) -> tuple[dict[Cell, tuple[Pair, ...]], Interval | None]:
    """The pairs for these cells, as many as there is time for, and how plain decoding moved.

    Where it moved, all is done once more if there is time.
    """
    if not depths:
        return {}, drift_of(session.trials)
    num_pairs = pairs_in_time(session, len(depths))
    pairs, drift = confirm(session, depths, num_pairs), drift_of(session.trials)
    if drift is None or pairs_in_time(session, len(depths)) < num_pairs:
        return pairs, drift
    began = len(session.trials)
    pairs = confirm(session, depths, num_pairs)
    return pairs, drift_of(session.trials[began:])
