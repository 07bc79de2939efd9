"""Other ways of drafting than the user's, tried where drafting has won and time is left.

What wins is told and recorded. A window of the head's attention, which nobody could guess, becomes
part of the profile; the rest stays the user's choice.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mtplx.draft_options import DraftOptions
from mtplx.profile import Choice, Interval
from mtplx.tuner.confirm import Pair, ratios
from mtplx.tuner.plan import MIN_CONTEXT, Plan
from mtplx.tuner.search import MIN_EFFECT
from mtplx.tuner.session import Session
from mtplx.tuner.statistics import chance_of_mean, interval
from mtplx.tuner.trial import CONFIRM, LEVER, Cell
from mtplx.tuner.verdict import Verdict

NUM_PAIRS = 6
WINDOWS = 4  # a window of so many to the text is tried
MAX_CHANCE = 0.01
_FIRST_TURN = 500


@dataclass(frozen=True, slots=True)
class Lever:
    """A way of drafting against the user's own, in one cell.

    flag: how it is asked for on the command line. ratio: its speed over the user's. window: of the
        head's attention, where that is what was tried.
    """

    flag: str
    kind: str
    context: int
    ratio: Interval
    wins: bool
    window: int | None = None


def try_levers(session: Session, verdict: Verdict) -> tuple[Lever, ...] | None:
    """All levers, each in the cell that it matters most in; None where there is no time for that.

    That is where drafting gains most, and for a window the longest text for which drafting pays.
    """
    drafted = [choice for choice in verdict.choices if choice.depth and choice.ratio]
    if not verdict.saves or not drafted:
        return None
    best = max(drafted, key=_gain)
    candidates = [(best, flag, options) for flag, options in _candidates(session.plan)]
    longest = max(drafted, key=lambda choice: (choice.context, _gain(choice)))
    left_s = 0.8 * session.left_s - sum(_needed_s(session, choice) for choice, *_ in candidates)
    if left_s < 0:
        return None
    draft = session.plan.draft
    is_long = longest.context >= WINDOWS * MIN_CONTEXT
    if (
        is_long
        and draft.window is None
        and draft.uses_head
        and _needed_s(session, longest) < left_s
    ):
        window = 1 << ((longest.context // WINDOWS).bit_length() - 1)
        candidates.append((longest, f"--draft-window {window}", replace(draft, window=window)))
    return tuple(
        _tried(session, choice, flag, options, MAX_CHANCE / len(candidates))
        for choice, flag, options in candidates
    )


def _gain(choice: Choice) -> float:
    return choice.ratio.median if choice.ratio else 0.0


def _candidates(plan: Plan) -> Iterator[tuple[str, DraftOptions]]:
    draft = plan.draft
    if plan.params.draws_randomly and draft.mode == "auto":
        yield "--draft greedy", replace(draft, mode="greedy")
        yield "--draft sampled", replace(draft, mode="sampled")
    if draft.stop is None:
        yield "--draft-stop 0", replace(draft, stop=0.0)
        yield "--draft-stop 0.2", replace(draft, stop=0.2)
    if draft.lookup:
        yield "--no-lookup", replace(draft, lookup=False)


def _needed_s(session: Session, choice: Choice) -> float:
    taken = [
        t.sample.decode_s
        for t in session.trials
        if t.stage == CONFIRM and t.depth and _is_cell(t.cell, choice)
    ]
    return 2 * NUM_PAIRS * statistics.median(taken)


def _is_cell(cell: Cell, choice: Choice) -> bool:
    return (cell.kind, cell.context) == (choice.kind, choice.context)


def _tried(
    session: Session, choice: Choice, flag: str, options: DraftOptions, max_chance: float
) -> Lever:
    cell = next(t.cell for t in session.trials if _is_cell(t.cell, choice))
    session.open(cell)
    pairs = []
    for turn in range(NUM_PAIRS):
        order = ("", flag) if turn % 2 else (flag, "")
        done = {
            name: session.take(
                LEVER, cell, choice.depth, _FIRST_TURN + turn, options if name else None, name
            )
            for name in order
        }
        pairs.append(Pair(done[""], done[flag]))
    ratio = interval(ratios(pairs))
    wins = (
        ratio.median >= 1 + MIN_EFFECT
        and chance_of_mean([pair.log_ratio for pair in pairs]) <= max_chance
    )
    window = options.window if options.window != session.plan.draft.window else None
    return Lever(flag, cell.kind, cell.context, ratio, wins, window)
