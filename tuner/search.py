"""Which depth is worth a closer look in a cell: all depths, then the better half, and so on.

Each turn takes the arms in an order of chance and then back again, so that a machine which slows
down steadily is as slow for all of them. Depths are ranked by the tokens per round that are to be
expected over the seconds of a round. Both are means over all that was measured: whether the third
drafted token is accepted does not depend on how many stand behind it, so every arm that is deep
enough tells of it. What is ranked here is not what is believed: the winner has to win again, in
replies of its own (`confirm.py`).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

from mtplx.tuner.session import Session, shuffled
from mtplx.tuner.trial import SEARCH, Cell, Trial

MIN_EFFECT = 0.03  # by which a depth has to be better than a shallower one
NUM_FINALISTS = 4  # arms, plain decoding among them, that are not halved any more
MIN_TURNS = 2


def search(session: Session, cell: Cell, num_tokens: Callable[[], int]) -> int:
    """The depth that promises most in a cell, 0 being plain decoding.

    num_tokens: asked before each turn for the length of its replies.
    """
    session.open(cell)
    arms = list(range(session.plan.max_depth + 1))
    trials: list[Trial] = []
    turn = 0
    while True:
        session.num_tokens = num_tokens()
        order = shuffled(arms, session.numbers)
        there_and_back = [*order, *reversed(order)]
        trials += [session.take(SEARCH, cell, depth, turn) for depth in there_and_back]
        turn += 1
        if len(arms) <= NUM_FINALISTS and turn >= MIN_TURNS:
            return shallowest_good(expected_speeds(trials), arms)
        arms = _halved(arms, expected_speeds(trials))


def num_search_replies(max_depth: int) -> int:
    """How many replies `search` takes in a cell."""
    arms, turns, total = max_depth + 1, 0, 0
    while True:
        total, turns = total + 2 * arms, turns + 1
        if arms <= NUM_FINALISTS and turns >= MIN_TURNS:
            return total
        arms = _half(arms)


def _halved(arms: Sequence[int], speeds: Mapping[int, float]) -> list[int]:
    """Plain decoding and the better half of the others, the shallowest good one among them."""
    drafting = [depth for depth in arms if depth]
    first = shallowest_good(speeds, drafting)
    ranked = sorted(drafting, key=lambda depth: (depth != first, -speeds[depth]))
    return [0, *sorted(ranked[: _half(len(arms)) - 1])]


def _half(num_arms: int) -> int:
    return num_arms if num_arms <= NUM_FINALISTS else 1 + (num_arms - 1) // 2


def expected_speeds(trials: Sequence[Trial]) -> dict[int, float]:
    """Tokens per second of each depth among the trials of a cell, as is to be expected."""
    reached = reach(trials)
    by_depth: dict[int, list[float]] = {}
    for trial in trials:
        round_s = trial.sample.decode_s / trial.sample.num_rounds
        by_depth.setdefault(trial.depth, []).append(round_s)
    return {
        depth: (1 + sum(reached[:depth])) / statistics.geometric_mean(times)
        for depth, times in by_depth.items()
    }


def reach(trials: Sequence[Trial]) -> list[float]:
    """For each place in a draft, the share of rounds whose token there was accepted.

    Of all arms that draft so deep; a round that ends its draft before it counts as one.
    """
    shares = []
    for place in range(max(trial.depth for trial in trials)):
        deep = [trial.sample for trial in trials if trial.depth > place]
        accepted = sum(s.accepted[place] for s in deep if len(s.accepted) > place)
        shares.append(accepted / sum(s.num_rounds for s in deep))
    return shares


def shallowest_good(speeds: Mapping[int, float], arms: Sequence[int]) -> int:
    """The shallowest arm that no other one beats by the least effect that counts."""
    best = max(speeds[depth] for depth in arms)
    return min(depth for depth in arms if speeds[depth] * (1 + MIN_EFFECT) >= best)
