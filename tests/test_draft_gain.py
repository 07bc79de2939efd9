"""Which source is to draft: what it is expected to bring, from what it brought."""

import pytest

from mtplx.draft_gain import Gains, Rate
from mtplx.lookup import Continuation

PASSAGE = Continuation((5, 6, 7, 8), 6)
NOTHING = Continuation()


def taught(*, head: list[int], passage: list[int], depth: int = 4) -> Gains:
    """head: accepted tokens of rounds; passage: tokens of PASSAGE that recurred in rounds."""
    gains = Gains()
    for num_accepted in head:
        gains.learn(NOTHING, [1] * (num_accepted + 1), depth)
    for num_recurred in passage:
        gains.learn(PASSAGE, [*PASSAGE.token_ids[:num_recurred], 99][:4], 0)
    return gains


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_without_a_passage_the_head_drafts_all(num_tokens: int) -> None:
    """However little it was accepted: how deep to draft is not decided here."""
    assert taught(head=[0] * 50, passage=[]).plan(num_tokens, NOTHING, head=True) == (num_tokens, 0)


def test_a_passage_that_always_recurs_is_drafted_alone() -> None:
    """It costs nothing to draft and is accepted more often than a middling head."""
    assert taught(head=[1] * 50, passage=[4] * 50).plan(3, PASSAGE, head=True) == (0, 3)


def test_a_passage_that_never_recurs_is_left_to_the_head() -> None:
    """Though it would be free."""
    assert taught(head=[4] * 50, passage=[0] * 50).plan(3, PASSAGE, head=True) == (3, 0)


def test_where_a_head_is_only_good_for_one_token_the_passage_follows_it() -> None:
    """The head's own first, then the passage, where the head's second is never accepted."""
    gains = taught(head=[1] * 50, passage=[4, 0] * 40)
    num_head, num_passage = gains.plan(4, PASSAGE, head=True)
    assert num_head == 1
    assert num_passage == 3


def test_without_a_head_only_what_pays_is_drafted() -> None:
    """A passage that mostly recurs is drafted to the end, a poor one in part or not at all."""
    plan = {
        name: taught(head=[], passage=rounds).plan(4, PASSAGE, head=False)
        for name, rounds in {"good": [4] * 30, "poor": [0, 1] * 30, "bad": [0] * 60}.items()
    }
    assert plan["good"] == (0, 4)
    assert 0 < plan["poor"][1] < 4
    assert plan["bad"] == (0, 0)
    assert Gains().plan(4, NOTHING, head=False) == (0, 0)


def test_what_recurs_is_learnt_without_being_drafted() -> None:
    """The head's rounds teach how good the passages were that it was preferred to."""
    gains = Gains()
    for _ in range(40):
        gains.learn(PASSAGE, [5, 6], 3)
    assert gains.plan(3, PASSAGE, head=True) == (0, 3)


def test_long_recurrences_are_told_from_short_ones() -> None:
    """What short ones did says nothing about long ones."""
    gains = taught(head=[1] * 20, passage=[0] * 60)
    assert gains.plan(2, Continuation((5, 6), 40), head=True) == (0, 2)


def test_a_recurrence_gets_likelier_as_it_grows() -> None:
    """The sixth token of one that began with three has eight before it, like the first of such."""
    runs = [Continuation((5, 6, 7, 8), 3), Continuation((5,), 8)]
    gains = Gains()
    for _ in range(50):
        gains.learn(runs[0], [99], 0)
        gains.learn(runs[1], [5, 1], 0)
    three, long = (gains.recurrence(Continuation((1,) * 8, n), 8) for n in (3, 7))
    assert three[0] < 0.1
    assert long[1] > 0.9 * long[0]
    assert three[5] / three[4] == pytest.approx(long[1] / long[0])


def test_a_run_that_goes_on_teaches_little_and_one_that_ends_at_once() -> None:
    """A long copy says that it is one, not that it has no end."""
    good, bad = (taught(head=[], passage=[n] * 5) for n in (4, 0))
    at_first = Gains().recurrence(PASSAGE, 1)[0]
    assert at_first < good.recurrence(PASSAGE, 1)[0] < at_first + 0.4 * (1 - at_first)
    assert bad.recurrence(PASSAGE, 1)[0] < 0.5 * at_first


def test_how_likely_a_token_was_counts_twice_what_came_of_it() -> None:
    """Where it was read."""
    read, unread = Gains(), Gains()
    for _ in range(50):
        read.learn(NOTHING, [1], 1, chances=[0.6])
        unread.learn(NOTHING, [1], 1)
    assert read.accepted(1)[0] == pytest.approx(0.4, abs=0.03)
    assert unread.accepted(1)[0] < 0.05


def test_a_rate_forgets() -> None:
    """It begins as what was expected and follows a change within a few hundred outcomes."""
    rate = Rate(0.5)
    assert rate.value == 0.5
    for _ in range(500):
        rate.learn(True)
    assert rate.value > 0.95
    for _ in range(200):
        rate.learn(False)
    assert rate.value < 0.05
