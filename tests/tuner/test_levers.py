"""Other ways of drafting: tried where drafting pays, kept where they are faster beyond chance."""

from collections.abc import Callable

import pytest

from mtplx.draft_options import DraftOptions
from mtplx.profile import Profile
from mtplx.tuner.conditions import Conditions
from mtplx.tuner.levers import Lever
from mtplx.tuner.record import make_profile
from tests.tuner.profiles import KEY
from tests.tuner.scripted import ScriptedBench, plan, run

RATES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


def profile_of(
    lever_factor: Callable[[DraftOptions], float],
    contexts: tuple[int, ...] = (1024, 4096),
    draft: DraftOptions | None = None,
) -> tuple[Profile, dict[str, Lever]]:
    """What a run on a scripted machine keeps, and the levers that it tried by their flags."""
    bench = ScriptedBench(
        {"chat": RATES, "code": RATES}, noise=0.02, drawn=True, lever_factor=lever_factor
    )
    outcome = run(bench, plan(contexts=contexts, draft=draft or DraftOptions()))
    quiet = Conditions({})
    levers = {lever.flag: lever for lever in outcome.levers or ()}
    return make_profile(outcome, KEY, "smollm2", quiet, quiet), levers


def with_window(factor: float) -> Callable[[DraftOptions], float]:
    return lambda draft: factor if draft.window else 1.0


def without_lookup(factor: float) -> Callable[[DraftOptions], float]:
    return lambda draft: 1.0 if draft.lookup else factor


def test_a_window_that_is_faster_becomes_part_of_the_profile() -> None:
    """A quarter of the longest text, tried there; told, and used from then on."""
    profile, levers = profile_of(with_window(0.8))
    lever = levers["--draft-window 1024"]
    assert lever.wins
    assert lever.context == 4096
    assert profile.window == 1024
    (told,) = [note for note in profile.notes if "--draft-window" in note]
    assert told.endswith("it is used from now on.")


def test_a_step_then_costs_what_it_cost_with_the_window() -> None:
    """By the replies that were drafted so: on this machine all of a reply is faster by a factor."""
    profile, _ = profile_of(with_window(0.8))
    usual, _ = profile_of(with_window(1.0))
    assert profile.curve.draft_s[-1] == pytest.approx(0.8 * usual.curve.draft_s[-1], rel=0.03)
    assert profile.curve.draft_s[0] <= profile.curve.draft_s[-1]
    assert profile.curve.verify_s[0][0] == pytest.approx(usual.curve.verify_s[0][0], rel=0.03)


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_a_window_that_is_no_faster_is_left_out(factor: float) -> None:
    profile, levers = profile_of(with_window(factor))
    assert not levers["--draft-window 1024"].wins
    assert profile.window is None


def test_no_window_is_tried_for_short_texts() -> None:
    """The head would hardly see less."""
    profile, levers = profile_of(with_window(0.5), contexts=(128, 256))
    assert not any("window" in flag for flag in levers)
    assert profile.window is None


@pytest.mark.parametrize("window", [0, 512])
def test_a_window_of_the_users_own_stays(window: int) -> None:
    """No other one is tried, and none is recorded with another way of drafting that wins."""
    profile, levers = profile_of(without_lookup(0.8), draft=DraftOptions(window=window))
    assert not any("window" in flag for flag in levers)
    assert levers["--no-lookup"].wins
    assert profile.window is None
    (told,) = [note for note in profile.notes if "--no-lookup" in note]
    assert told.endswith("it is yours to set.")


def test_no_window_is_tried_where_no_head_drafts() -> None:
    profile, levers = profile_of(with_window(0.5), draft=DraftOptions(mode="lookup"))
    assert not any("window" in flag for flag in levers)
    assert profile.window is None


def test_another_way_that_is_faster_is_told_and_not_set() -> None:
    profile, levers = profile_of(without_lookup(0.8))
    assert levers["--no-lookup"].wins
    (told,) = [note for note in profile.notes if "--no-lookup" in note]
    assert told.endswith("it is yours to set.")
