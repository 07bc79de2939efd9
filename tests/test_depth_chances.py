"""The depth that is chosen where it is read how likely the head holds its tokens."""

import pytest

from mtplx.auto_depth import AutoDepth
from mtplx.depth import Ask, Outcome, Plan
from mtplx.prospect import prospect_of
from tests.depth_harness import NOTHING, auto, linear

DEAR = linear(1.0, 0.13, 0.06)  # a draft of one token has to be accepted once in five times


def taught(policy: AutoDepth, held: float, *, num_refused: int) -> AutoDepth:
    """After rounds of one drafted token that the head held as likely as this."""
    for _ in range(num_refused):
        policy.learn(Outcome(NOTHING, Plan(1), 1, 0, (held,), (1,)))
    return policy


def drafts(policy: AutoDepth) -> bool:
    ask = Ask(100, 16, NOTHING, has_head=True, reads_chances=True)
    plan = policy.plan(ask)
    return plan.num_head > 0 and plan.reason != "probe"


def test_a_few_refusals_of_likely_tokens_are_bad_luck() -> None:
    """One in four texts begins so where each is accepted half the time."""
    assert drafts(taught(auto(DEAR), 0.5, num_refused=2))


def test_a_few_refusals_of_unlikely_tokens_are_none() -> None:
    """The head says itself that it does not know how to go on."""
    assert not drafts(taught(auto(DEAR), 0.06, num_refused=6))


def test_a_head_that_is_sure_and_wrong_is_given_up() -> None:
    """What it says of itself is measured too."""
    assert not drafts(taught(auto(DEAR), 0.95, num_refused=32))


@pytest.mark.parametrize("follows", [(2,), (3,)])
def test_what_the_head_held_behind_a_refused_token_changes_no_plan(
    follows: tuple[int, ...],
) -> None:
    """It says nothing of how the text goes on."""
    plans = []
    for held_behind in (0.05, 0.99):
        policy = auto(DEAR)
        for _ in range(8):
            policy.learn(Outcome(NOTHING, Plan(3), 3, 0, (0.5, held_behind, held_behind), follows))
        plans.append(policy.plan(Ask(100, 16, NOTHING, has_head=True, reads_chances=True)))
    assert plans[0] == plans[1]


def test_a_round_takes_the_first_step_once_and_a_passage_none() -> None:
    """By whoever drafts: rows, steps of the head, and what the first of these takes more."""
    rest_s = (1.0, 1.1, 1.3, 1.6)
    found = prospect_of([1.0, 1.5], [1.0, 1.3], [0.5], rest_s, 0.06, 0.05)
    assert found.round_s(2, 1) == pytest.approx(1.6 + 2 * 0.06 + 0.05)
    assert found.round_s(0, 3) == pytest.approx(1.6)
