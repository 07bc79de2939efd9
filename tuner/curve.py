"""The cost curve of a machine and a model, fitted to what whole rounds took.

How the time of a target pass grows with its rows is measured alone, since few rounds of real text
reach the longest drafts. What a round takes besides, and by which factor passes in a round differ
from passes alone, is fitted to the rounds of real replies. So the parts add up to wall time, and
work that the device had put off is not taken for another part's.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mtplx.costs import CostCurve
from mtplx.tuner.session import pooled
from mtplx.tuner.trial import Trial

MIN_OUTCOMES = 8  # of a place in a draft, for its acceptance to be told


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """curve, and its error: how far the sum of parts is from wall time, as a share, in a typical
    reply."""

    curve: CostCurve
    error: float


def fit_costs(trials: Sequence[Trial], passes_s: Mapping[int, Sequence[float]]) -> FittedCosts:
    """The curve at each context.

    trials: real replies, plain and drafted. passes_s: by context, seconds of passes of 1, 2, …
    rows, measured alone.
    """
    contexts = tuple(sorted(passes_s))
    at = {context: [t for t in trials if t.cell.context == context] for context in contexts}
    rows = [_round_s(at[context], passes_s[context]) for context in contexts]
    drafted = [[t for t in at[context] if t.sample.num_from_head] for context in contexts]
    fixed_s = min(_fixed_s(trials), 0.5 * min(min(times) for times in rows))
    curve = CostCurve(
        contexts=contexts,
        verify_s=tuple(tuple(s - fixed_s for s in times) for times in rows),
        draft_s=tuple(_draft_s(found) for found in drafted),
        fixed_s=fixed_s,
    )
    return FittedCosts(curve, statistics.median(abs(_error(curve, trial)) for trial in trials))


def with_window(costs: FittedCosts, trials: Sequence[Trial]) -> FittedCosts:
    """The costs of a head that looks back over a window.

    trials: replies drafted so. Whatever the context, a step looks at no more than it did there.
    """
    step_s, curve = _draft_s(trials), costs.curve
    draft_s = tuple(min(time_s, step_s) for time_s in curve.draft_s)
    return replace(costs, curve=replace(curve, draft_s=draft_s))


def _round_s(trials: Sequence[Trial], passes_s: Sequence[float]) -> list[float]:
    """Seconds of a round of 1, 2, … rows without its draft.

    The first is that of plain rounds; of the others a line in the passes' own times is fitted.
    """
    plain = [t.sample.decode_s / t.sample.num_rounds for t in trials if t.depth == 0]
    alone, taken = [], []
    for trial in trials:
        sample = trial.sample
        num_rows = 1 + sum(sample.drafted) / sample.num_rounds
        if trial.depth and num_rows > 1:
            alone.append(_between(passes_s, num_rows))
            taken.append((sample.decode_s - sample.draft_s) / sample.num_rounds)
    first = statistics.median(plain)
    factor, more_s = _line(alone, taken) if alone else (first / passes_s[0], 0.0)
    return [first, *(max(factor * s + more_s, 0.5 * first) for s in passes_s[1:])]


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and offset of a line; the offset alone where the points do not tell a sane slope."""
    spread = max(x) - min(x)
    if spread > 0.1 * min(x):
        slope, offset = np.polyfit(x, y, 1)
        if 0.5 <= slope <= 2:
            return float(slope), float(offset)
    return 1.0, statistics.median(b - a for a, b in zip(x, y, strict=True))


def _draft_s(trials: Sequence[Trial]) -> float:
    """Seconds for each token that the head drafted."""
    if not trials:
        return 0.0
    whole = pooled(trials)
    return whole.draft_s / whole.num_from_head


def _fixed_s(trials: Sequence[Trial]) -> float:
    """What a round takes besides its draft and its pass: law, read and host."""
    return statistics.median(
        max(t.sample.decode_s - t.sample.draft_s - t.sample.verify_s, 0.0) / t.sample.num_rounds
        for t in trials
    )


def _error(curve: CostCurve, trial: Trial) -> float:
    """Predicted over real time of a reply, less 1."""
    sample = trial.sample
    num_rows = 1 + sum(sample.drafted) / sample.num_rounds
    context = len(trial.cell.token_ids) or trial.cell.context
    times = [curve.verify_at(rows, context) for rows in range(1, curve.max_depth + 2)]
    draft_s = curve.draft_at(context) * sample.num_from_head
    predicted = sample.num_rounds * (_between(times, num_rows) + curve.fixed_s) + draft_s
    return predicted / sample.decode_s - 1


def _between(values: Sequence[float], num_rows: float) -> float:
    """The value at a number of rows that need not be whole."""
    return float(np.interp(num_rows, range(1, len(values) + 1), values))


def fit_priors(trials: Sequence[Trial], max_depth: int) -> dict[str, tuple[float, ...]]:
    """By class, and "" for any: how often a drafted token is accepted if those before it were."""
    kinds = dict.fromkeys(trial.cell.kind for trial in trials)
    drafted = [trial for trial in trials if trial.depth]
    if not drafted:
        return {}
    found = {kind: [t for t in drafted if t.cell.kind == kind] for kind in kinds}
    return {
        kind: _conditional(some, max_depth) for kind, some in {"": drafted, **found}.items() if some
    }


def _conditional(trials: Sequence[Trial], max_depth: int) -> tuple[float, ...]:
    """Acceptance by place, given that all before were accepted; the last one that is told goes on.

    Of the rounds that were deep enough. A draft that ends by itself counts as not accepted.
    """
    rates: list[float] = []
    for place in range(max_depth):
        deep = [trial for trial in trials if trial.depth > place]
        if not deep:
            break
        whole = pooled(deep)
        accepted = [*whole.accepted, *[0] * max_depth]
        tried = accepted[place - 1] if place else whole.num_rounds
        if tried < MIN_OUTCOMES and rates:
            break
        rates.append((accepted[place] + 1) / (tried + 2))
    return (*rates, *[rates[-1]] * (max_depth - len(rates)))
