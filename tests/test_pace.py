"""What a round takes now: the curve, put right by rounds that were timed."""

import numpy as np
import pytest

from mtplx.costs import CostCurve
from mtplx.pace import Pace, Paces, RoundTime

CURVE = CostCurve((1,), ((1.0, 1.1, 1.2, 1.3, 1.4),), (0.1,))


def timed(rows: int, rest_s: float, *, steps: int = 0, draft_s: float = 0.0) -> RoundTime:
    return RoundTime(10, rows, steps, draft_s, rest_s)


def ratios(pace: Pace) -> list[float]:
    """Of rows to one row."""
    rest_s = pace.rest_s(10, 5)
    return [time_s / rest_s[0] for time_s in rest_s]


def test_the_first_step_of_a_draft_is_told_from_the_others() -> None:
    """It takes in what the head has not seen, and a longer draft does so once."""
    pace = Pace(CURVE)
    for num_steps in (1, 3, 1, 2, 1, 4, 1, 3):
        pace.learn(RoundTime(10, 1 + num_steps, num_steps, 0.12 + 0.05 * (num_steps - 1), 1.0))
    assert pace.step_s(10) == pytest.approx(0.05, rel=0.05)
    assert pace.first_s(10) == pytest.approx(0.07, rel=0.05)


def test_at_first_it_is_the_curve() -> None:
    """Also its proportions, in whatever unit."""
    assert Pace(CURVE).rest_s(10, 5) == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])
    assert Pace(CURVE).step_s(10) == pytest.approx(0.1)


def test_the_first_times_give_the_unit() -> None:
    """One kind of round is enough to know all, if the curve has the right proportions."""
    pace = Pace(CURVE)
    for _ in range(4):
        pace.learn(timed(3, 0.12, steps=2, draft_s=0.02))
    assert pace.rest_s(10, 5) == pytest.approx([0.1, 0.11, 0.12, 0.13, 0.14])
    assert pace.step_s(10) == pytest.approx(0.01)


def test_wrong_proportions_are_put_right() -> None:
    """Rounds of two kinds in turn, one of which is three times what was expected."""
    pace = Pace(CURVE)
    for _ in range(6):
        pace.learn(timed(1, 1.0))
        pace.learn(timed(2, 3.3))
    assert ratios(pace)[1] == pytest.approx(3.3, rel=0.02)


@pytest.mark.parametrize("is_tuned", [False, True])
def test_a_spike_changes_nothing(is_tuned: bool) -> None:
    """A round that takes a hundred times as long, as one that compiles a kernel or pages."""
    pace = Pace(CURVE, is_tuned=is_tuned)
    for _ in range(8):
        pace.learn(timed(1, 1.0))
        pace.learn(timed(3, 1.2))
    before = ratios(pace)
    pace.learn(timed(3, 120.0))
    assert ratios(pace) == pytest.approx(before, rel=1e-6)


def test_the_first_round_of_a_kind_does_not_count() -> None:
    """It compiles what the others find compiled."""
    pace = Pace(CURVE)
    for _ in range(4):
        pace.learn(timed(1, 1.0))
    pace.learn(timed(4, 40.0))
    assert ratios(pace)[3] == pytest.approx(1.3)


def test_a_machine_that_slows_down_changes_no_proportion() -> None:
    """Plain rounds were timed before, drafted ones after it: what counts is who is slower when."""
    pace = Pace(CURVE)
    for _ in range(6):
        pace.learn(timed(1, 1.0))
        pace.learn(timed(3, 1.2))
    for _ in range(200):
        pace.learn(timed(3, 2.4))
    assert pace.rest_s(10, 3)[2] == pytest.approx(2.4, rel=0.01)
    assert ratios(pace)[2] == pytest.approx(1.2, rel=0.01)


def test_noise_is_evened_out() -> None:
    """A fifth up or down in each round leaves proportions right to an eighth."""
    rng, pace = np.random.default_rng(3), Pace(CURVE)
    for noise in np.exp(0.2 * rng.standard_normal((60, 2))):
        pace.learn(timed(1, 1.0 * noise[0]))
        pace.learn(timed(4, 2.6 * noise[1]))
    assert ratios(pace)[3] == pytest.approx(2.6, rel=1 / 8)


def test_rows_that_were_not_timed_follow_their_neighbours() -> None:
    """Between two that were, and a little beyond the last."""
    pace = Pace(CURVE)
    for _ in range(6):
        pace.learn(timed(1, 1.0))
        pace.learn(timed(3, 2.4))
    two, four = ratios(pace)[1], ratios(pace)[3]
    assert 1.1 < two < 2.2
    assert four > 2.6


def test_a_curve_of_this_machine_is_not_given_up_for_one_time() -> None:
    """What was measured counts like a few rounds."""
    pace = Pace(CURVE, is_tuned=True)
    for _ in range(6):
        pace.learn(timed(1, 1.0))
    for _ in range(2):
        pace.learn(timed(3, 3.0))
    assert ratios(pace)[2] == pytest.approx(1.2)


def test_plain_rounds_are_timed_often_at_first_and_seldom_later() -> None:
    """Without them it is not known what drafting is compared with."""
    pace, due = Pace(CURVE), []
    for index in range(400):
        if pace.is_due(1):
            due.append(index)
            pace.learn(timed(1, 1.0))
        else:
            pace.learn(timed(3, 1.2))
    assert due[0] <= 4
    assert 4 <= sum(index < 64 for index in due) <= 8
    assert sum(index >= 200 for index in due) <= 2


def test_one_model_has_one_pace() -> None:
    """Until another curve is given for it."""
    paces = Paces()
    assert paces.of(CURVE, is_tuned=False) is paces.of(CURVE, is_tuned=False)
    other = CostCurve((1,), ((1.0,),), (0.1,))
    assert paces.of(other, is_tuned=True) is not paces.of(CURVE, is_tuned=False)


def test_two_bad_times_are_not_believed() -> None:
    """A kind that was hardly timed, and both times while another process was at work."""
    pace = Pace(CURVE)
    for _ in range(8):
        pace.learn(timed(1, 1.0))
        pace.learn(timed(3, 1.2))
    for rest_s in (1.1, 9.0, 9.0):
        pace.learn(timed(2, rest_s))
    assert ratios(pace)[1] == pytest.approx(1.1, rel=0.01)
