"""Rounds that favour no arm, and what an interruption leaves."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from mtplx.bench.arms import Arm, Case, Sample
from mtplx.bench.measure import WARM_UP_TOKENS, measure, visiting_order, warm_up
from mtplx.params import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=100)
CASES = [Case("chat", f"prompt {i}", tuple(range(i + 1)), i) for i in range(4)]
Visit = tuple[str, int, int]  # arm, prompt, max_tokens


def watched_arms(count: int, visits: list[Visit], ends: Callable[[], None]) -> list[Arm]:
    """Arms that note who was asked what; `ends` is called with each answer."""

    def arm(name: str) -> Arm:
        def answer(case: Case, params: SamplingParams) -> Sample:
            visits.append((name, case.seed, params.max_tokens))
            ends()
            return Sample((1, 2), 1.0, 2.0)

        return Arm(name, 0, answer)

    return [arm(f"arm {i}") for i in range(count)]


def silent(done: int, total: int, what: str) -> None:
    pass


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_arm_stands_at_every_place_as_often(count: int) -> None:
    """Over 2 n visits each arm is twice at each place."""
    arms = watched_arms(count, [], lambda: None)
    orders = [visiting_order(arms, visit) for visit in range(2 * count)]
    places = Counter((place, arm.name) for order in orders for place, arm in enumerate(order))
    assert set(places.values()) == {2}
    assert len(places) == count**2


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_no_arm_always_follows_another(count: int) -> None:
    """Over 2 n visits an arm comes before each of its neighbours as often as after it."""
    arms = watched_arms(count, [], lambda: None)
    orders = [visiting_order(arms, visit) for visit in range(2 * count)]
    follows = Counter((a.name, b.name) for order in orders for a, b in pairwise(order))
    assert all(follows[a, b] == follows[b, a] for a, b in follows)


@pytest.mark.parametrize("num_cases", [1, 2, 3, 4])
def test_a_prompt_meets_the_arms_in_changing_order(num_cases: int) -> None:
    """However many prompts there are, each of them sees each arm first at some time."""
    visits: list[Visit] = []
    arms = watched_arms(3, visits, lambda: None)
    measure(arms, CASES[:num_cases], PARAMS, 6, silent)
    groups = [visits[i : i + 3] for i in range(0, len(visits), 3)]
    for case in CASES[:num_cases]:
        firsts = {group[0][0] for group in groups if group[0][1] == case.seed}
        assert firsts == {"arm 0", "arm 1", "arm 2"}


def test_arms_answer_a_prompt_one_right_after_the_other() -> None:
    """Each prompt of each round is answered by every arm before the next prompt begins."""
    visits: list[Visit] = []
    records = measure(watched_arms(3, visits, lambda: None), CASES, PARAMS, 2, silent)
    groups = [visits[i : i + 3] for i in range(0, len(visits), 3)]
    assert len(groups) == 2 * len(CASES)
    for group in groups:
        assert len({seed for _, seed, _ in group}) == 1
        assert len({name for name, _, _ in group}) == 3
    recorded = [(r.label, r.case.seed, PARAMS.max_tokens) for r in records]
    assert recorded == visits
    assert [r.round_index for r in records] == [0] * 12 + [1] * 12


@pytest.mark.parametrize(("asks", "expected"), [(30, 2), (24, 1)])
def test_an_interruption_leaves_the_rounds_that_are_complete(asks: int, expected: int) -> None:
    """Ctrl-C drops the round it falls into and keeps those before it."""
    visits: list[Visit] = []

    def end() -> None:
        if len(visits) == asks:
            raise KeyboardInterrupt

    records = measure(watched_arms(3, visits, end), CASES, PARAMS, 5, silent)
    assert len(records) == 12 * expected


def test_an_interruption_of_the_first_round_is_one() -> None:
    """With nothing complete there is nothing to report."""

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(watched_arms(2, [], end), CASES, PARAMS, 2, silent)


def test_progress_counts_up_to_the_whole() -> None:
    """It starts at 0, grows by one with each reply, and ends at the total it always named."""
    told: list[tuple[int, int]] = []
    arms = watched_arms(2, [], lambda: None)
    measure(arms, CASES, PARAMS, 2, lambda done, total, what: told.append((done, total)))
    assert told == [(done, 16) for done in range(17)]


def test_the_warm_up_is_short_and_reaches_every_arm() -> None:
    """Each arm answers the shortest and the longest prompt, with few tokens."""
    visits: list[Visit] = []
    warm_up(watched_arms(2, visits, lambda: None), CASES, PARAMS)
    assert {(name, seed) for name, seed, _ in visits} == {
        (f"arm {i}", CASES[j].seed) for i in (0, 1) for j in (0, -1)
    }
    assert {max_tokens for _, _, max_tokens in visits} == {WARM_UP_TOKENS}
