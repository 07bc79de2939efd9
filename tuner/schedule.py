"""How long replies may be, and how many there is time for."""

import statistics

from mtplx.errors import UsageError
from mtplx.tuner.confirm import MAX_PAIRS, MIN_PAIRS, NUM_CHECKS
from mtplx.tuner.search import num_search_replies
from mtplx.tuner.session import Session
from mtplx.tuner.trial import WARM_UP

MIN_TOKENS, MAX_TOKENS = 12, 128  # of a reply
BRIEF = 32  # tokens, while it is not known what replies take besides their tokens
_USED = 0.85  # of the time that is left, so that a slower moment does not end the run


def num_replies(num_cells: int, max_depth: int) -> int:
    """How many replies a run takes from here, if each cell has something to confirm."""
    return num_cells * (num_search_replies(max_depth) + 2 * MIN_PAIRS) + 2 * NUM_CHECKS


def reply_length(session: Session, num_cells: int) -> int:
    """Tokens of the next replies of the search, so that all suits the time that is left.

    num_cells: that have not been searched yet. Those that have been take their confirmation.
    Raises UsageError where, before the first, even the shortest replies would be too long.
    """
    num_searched = len(session.plan.classes) * len(session.plan.contexts) - num_cells
    replies = num_replies(num_cells, session.plan.max_depth) + 2 * MIN_PAIRS * num_searched
    token_s = _token_s(session)
    length = int(_USED * session.left_s / (replies * token_s))
    if length < MIN_TOKENS and not session.asked:
        spent_s = session.plan.budget_s - session.left_s
        needed_s = spent_s + MIN_TOKENS * replies * token_s / _USED
        raise UsageError(
            f"A budget of {session.plan.budget_s:g} s is too little for {num_cells} classes and "
            f"contexts here: about {needed_s / 60 + 0.5:.0f} minutes are needed. Give more with "
            "--budget, or measure less with --classes and --contexts. Nothing was saved."
        )
    return min(max(length, MIN_TOKENS), MAX_TOKENS)


def pairs_in_time(session: Session, num_cells: int) -> int:
    """How many pairs of each cell to confirm there is time for: even, and within limits."""
    pair_s = 2 * session.num_tokens * _token_s(session)
    fitting = int(_USED * session.left_s / (num_cells * pair_s))
    return max(min(fitting // 2 * 2, MAX_PAIRS), MIN_PAIRS)


def _token_s(session: Session) -> float:
    """Wall time for each token of a reply."""
    if session.asked:
        return session.spent_s / session.asked
    found: dict[int, list[float]] = {}
    for trial in session.trials:
        if trial.stage == WARM_UP:
            found.setdefault(trial.depth, []).append(1 / trial.sample.tokens_per_s)
    # First replies are only ever slower than later ones.
    return statistics.fmean(min(times) for times in found.values())
