"""The choice of a mode from estimates, and the estimates themselves."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from mtplx.draft_mode import ModeChoice, coupled_rates, greedy_rates, sampled_rates

MODES = ("sampled", "greedy")


def taught(rows: Sequence[Sequence[float]], num_rounds: int) -> ModeChoice:
    choice = ModeChoice(MODES)
    for _ in range(num_rounds):
        choice.learn(rows, len(rows[0]))
    return choice


def test_the_better_mode_is_taken_once_it_is_known() -> None:
    """Not from the first rounds, then at once."""
    rows = [[0.4, 0.3], [0.6, 0.5]]
    assert taught(rows, 3).mode == "sampled"
    assert taught(rows, 4).mode == "greedy"


def test_the_whole_draft_counts() -> None:
    """A mode that is better at first and worse behind is judged by all of its tokens."""
    assert taught([[0.5, 0.8, 0.8], [0.55, 0.1, 0.1]], 20).mode == "sampled"


def test_a_small_advantage_changes_nothing() -> None:
    """Below the margin the mode stays, whichever it is."""
    choice = taught([[0.500], [0.505]], 50)
    assert choice.mode == "sampled"
    for _ in range(50):
        choice.learn([[0.2], [0.6]], 1)
    for _ in range(300):
        choice.learn([[0.505], [0.500]], 1)
    assert choice.mode == "greedy"


def test_an_advantage_by_chance_changes_nothing() -> None:
    """Estimates that scatter have to differ by more than their scatter explains."""
    noise = np.random.default_rng(0).choice([0.0, 0.9], size=(200, 2))
    changed = 0
    for start in range(50):
        choice = ModeChoice(MODES)
        for pair in noise[4 * start : 4 * start + 4]:
            choice.learn([[0.1 + pair[0]], [pair[1]]], 1)
        changed += choice.mode == "greedy"
    assert changed < 10


def test_of_two_better_modes_the_best_is_taken() -> None:
    """In whichever order they stand."""
    for modes in (("a", "b", "c"), ("a", "c", "b")):
        choice = ModeChoice(modes)
        for _ in range(8):
            choice.learn([[{"a": 0.2, "b": 0.4, "c": 0.6}[mode]] for mode in modes], 1)
        assert choice.mode == "c"


def test_a_text_that_changes_changes_the_mode() -> None:
    """What was learnt long ago does not hold for ever."""
    choice = taught([[0.2], [0.6]], 100)
    for _ in range(40):
        choice.learn([[0.6], [0.2]], 1)
    assert choice.mode == "sampled"


def test_positions_that_were_not_reached_teach_nothing() -> None:
    """Estimates behind the first refused token are of a text that is not written."""
    choice = ModeChoice(MODES)
    for _ in range(20):
        choice.learn([[0.5, 0.1], [0.4, 0.9]], 1)
    assert choice.mode == "sampled"
    for _ in range(20):
        choice.learn([[0.5, 0.1], [0.4, 0.9]], 2)
    assert choice.mode == "greedy"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_numbers_of_a_broken_head_teach_nothing(wrong: float) -> None:
    """Nor do they stop what comes later."""
    choice = ModeChoice(MODES)
    for _ in range(20):
        choice.learn([[wrong], [0.9]], 1)
    assert choice.mode == "sampled"
    for _ in range(20):
        choice.learn([[0.2], [0.9]], 1)
    assert choice.mode == "greedy"


def test_a_single_mode_is_never_looked_at() -> None:
    """There is nothing to find out."""
    assert not ModeChoice(["greedy"]).wants_estimates
    assert ModeChoice(MODES).wants_estimates


def test_estimates_are_the_acceptance_that_theory_gives() -> None:
    """p(argmax q) and the sum of min(p, q)."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(50), size=3).astype(np.float32)
    logits = rng.normal(size=(3, 50)).astype(np.float32)
    q = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    shared = np.minimum(p, q).sum(axis=1)
    best = p[np.arange(3), logits.argmax(axis=1)]
    assert np.array(greedy_rates(mx.array(p), mx.array(logits))) == pytest.approx(best)
    assert np.array(sampled_rates(mx.array(p), mx.array(q))) == pytest.approx(shared, abs=1e-6)


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("concentration", [0.02, 0.5])
def test_the_estimate_for_shared_noise_is_near_what_happens(
    concentration: float, spread: float
) -> None:
    """Within 0.03 of how often the same noise chooses the same token, over several pairs."""
    rng = np.random.default_rng(1)
    logits = np.log(rng.dirichlet(np.full(300, concentration), size=12) + 1e-12)
    p, q = (np.exp(x) for x in (logits, logits + rng.normal(size=logits.shape) * spread))
    p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
    noise = rng.exponential(size=(2000, 1, 300))
    agreed = ((noise / p).argmin(axis=2) == (noise / q).argmin(axis=2)).mean()
    estimate = coupled_rates(mx.array(p.astype(np.float32)), mx.array(q.astype(np.float32)))
    assert abs(float(np.array(estimate).mean()) - agreed) < 0.03
