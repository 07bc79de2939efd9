"""The cost curve and the acceptance that are fitted to replies whose parts are known."""

import statistics
from dataclasses import replace

import pytest

from mtplx.tuner.curve import fit_costs, fit_priors
from mtplx.tuner.run import Outcome
from mtplx.tuner.trial import CONFIRM, SEARCH
from tests.tuner.scripted import FIXED_MS, ScriptedBench, plan, run

RATES = (0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1)


def verify(rows: int, context: int) -> float:
    return 20 * (1 + context / 8192) * (1 + 0.1 * (rows - 1))


def draft(context: int) -> float:
    return 1 + context / 4096


def outcome(noise: float = 0.0) -> Outcome:
    bench = ScriptedBench({"chat": RATES, "code": RATES[::-1]}, verify, draft, noise=noise)
    return run(bench, plan(contexts=(1024, 8192)))


def test_the_curve_is_what_rounds_cost() -> None:
    """By rows and context, draft and the rest: what the script says comes out."""
    curve = outcome().costs.curve
    for context in (1024, 8192):
        assert curve.draft_at(context) == pytest.approx(draft(context) / 1000)
        for rows in range(1, 9):
            whole_ms = verify(rows, context) + FIXED_MS
            assert curve.verify_at(rows, context) + curve.fixed_s == pytest.approx(whole_ms / 1000)
    assert curve.fixed_s == pytest.approx(FIXED_MS / 1000)


def test_the_parts_add_up_to_wall_time() -> None:
    """Exactly without noise, and within it where there is some."""
    assert outcome().costs.error < 1e-6
    assert outcome(noise=0.03).costs.error < 0.06


def test_passes_that_are_slower_alone_are_put_right_by_rounds() -> None:
    """Only the shape of the passes' own times is taken: rounds say how long they take."""
    found = outcome()
    counted = [t for t in found.trials if t.stage in (SEARCH, CONFIRM)]
    alone = {
        context: [1.4 * verify(rows, context) / 1000 + 0.003 for rows in range(1, 9)]
        for context in (1024, 8192)
    }
    fitted = fit_costs(counted, alone)
    assert fitted.error < 1e-6
    assert fitted.curve.verify_s[0] == pytest.approx(found.costs.curve.verify_s[0])


def test_work_booked_on_another_part_does_not_change_the_sum() -> None:
    """Lazy evaluation that counts half of a pass as sampling: whole rounds cost the same."""
    found = outcome()
    counted = [t for t in found.trials if t.stage in (SEARCH, CONFIRM)]
    shifted = [
        replace(t, sample=replace(t.sample, verify_s=0.5 * t.sample.verify_s)) for t in counted
    ]
    passes = {c: [verify(rows, c) / 1000 for rows in range(1, 9)] for c in (1024, 8192)}
    right, wrong = fit_costs(counted, passes).curve, fit_costs(shifted, passes).curve
    for rows in range(1, 9):
        assert wrong.verify_at(rows, 1024) + wrong.fixed_s == pytest.approx(
            right.verify_at(rows, 1024) + right.fixed_s
        )


def test_acceptance_is_told_by_class_and_place() -> None:
    """Each place given that the ones before were accepted; "" is all classes together."""
    priors = fit_priors([t for t in outcome().trials if t.stage == SEARCH], 7)
    assert set(priors) == {"", "chat", "code"}
    assert all(len(rates) == 7 for rates in priors.values())
    assert priors["chat"][:3] == pytest.approx(RATES[:3], abs=0.02)
    assert priors["code"][0] == pytest.approx(0.1, abs=0.02)
    mean = statistics.fmean([priors["chat"][0], priors["code"][0]])
    assert priors[""][0] == pytest.approx(mean, abs=0.02)
