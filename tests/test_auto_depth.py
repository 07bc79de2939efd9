"""The depth that is expected to be fastest: machines and texts whose best depth is known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from mtplx import auto_depth
from mtplx.auto_depth import BEST, PASSAGE, PLAIN, PROBE, AutoDepth
from mtplx.costs import CostCurve
from mtplx.depth import MAX_DEPTH, Ask, Outcome, Plan
from mtplx.draft_gain import Gains
from mtplx.pace import Pace
from mtplx.shipped_costs import SHIPPED_PRIORS, Experts, shipped_curve
from tests.depth_harness import (
    NOTHING,
    Run,
    Text,
    auto,
    linear,
    run,
    static_rates,
    steady,
)

CHEAP = linear(1.0, 0.03, 0.04)  # rows that cost next to nothing
THREEFOLD = CostCurve((1,), ((1.0, 3.0, 3.1, 3.2, 3.3),), (0.05,))
PROSE = steady(0.45, 0.3, 0.2)
CODE = steady(0.9, 0.85, 0.8, 0.75)
HOPELESS = steady(0.03)


def long_context() -> CostCurve:
    """Depth 3 is best at 1k; at 32k each drafted token reads so much that none pays."""
    return CostCurve(
        (1_000, 32_000),
        ((1.0, 1.05, 1.1, 1.15, 1.6, 2.2), (2.0, 3.4, 4.8, 6.2, 7.6, 9.0)),
        (0.05, 1.0),
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_verify_pass_three_times_as_dear_means_plain_decoding(known: bool) -> None:
    """Also where the machine is not known and what is shipped says otherwise."""
    done = run(auto(THREEFOLD if known else None), THREEFOLD, PROSE, 400)
    assert done.usual == 0
    assert done.late[0] > 0.95 * done.late.total()


def test_high_acceptance_does_not_make_up_for_high_cost() -> None:
    """Nine of ten accepted, but each row costs a pass: plain."""
    rows = linear(1.0, 1.0, 0.1)
    done = run(auto(rows), rows, steady(0.9), 400)
    assert max(static_rates(rows, [0.9] * 8)) == static_rates(rows, [0.9] * 8)[0]
    assert done.usual == 0


@pytest.mark.parametrize(("context", "expected"), [(1_000, 3), (32_000, 0)])
def test_the_depth_goes_by_the_context(context: int, expected: int) -> None:
    """The same text, at both ends of a curve."""
    machine = long_context()
    rates = static_rates(machine, [0.8, 0.8, 0.8, 0.4, 0.3], context)
    assert rates.index(max(rates)) == expected
    done = run(auto(machine), machine, steady(0.8, 0.8, 0.8, 0.4, 0.3), 600, context=context)
    assert done.usual == expected


def test_each_text_gets_its_own_depth() -> None:
    """On one machine, with one pace: deep for code, shallow for prose, none for noise."""
    machine = linear(1.0, 0.08, 0.06)
    depths = [run(auto(machine), machine, text, 800).usual for text in (CODE, PROSE, HOPELESS)]
    assert depths[0] > depths[1] > depths[2] == 0


def test_classes_of_a_profile_tell_what_deeper_tokens_are_worth() -> None:
    """Two classes whose first token is accepted alike, and whose second is not."""
    machine = linear(1.0, 0.3, 0.05)
    priors = {"deep": (0.7, 0.95, 0.95), "flat": (0.3, 0.05, 0.05)}
    gains = [Gains(priors), Gains(priors)]
    for hit, known in zip((True, False), gains, strict=True):
        for _ in range(4):
            known.learn(NOTHING, [1, 2] if hit else [1], 1)
    assert gains[0].accepted(2)[1] > 0.8
    assert gains[1].accepted(2)[1] < 0.2
    assert machine.max_depth == 16


def noisy(seed: int, share: float) -> Callable[[int], float]:
    factors = np.exp(share * np.random.default_rng(seed).standard_normal(20_000))
    return lambda index: float(factors[index])


@pytest.mark.parametrize("seed", range(3))
def test_spikes_and_noise_do_not_change_the_depth(seed: int) -> None:
    """One round in twenty takes thirty times as long, the first of all a thousand times."""
    machine = linear(1.0, 0.08, 0.06)
    noise, spikes = noisy(seed, 0.1), np.random.default_rng(seed).random(20_000) < 0.05

    def slowness(index: int) -> float:
        return noise(index) * (1000 if index == 0 else 30 if spikes[index] else 1)

    calm = run(auto(machine), machine, CODE, 1500, seed=seed)
    wild = run(auto(machine), machine, CODE, 1500, seed=seed, slowness=slowness)
    assert abs(wild.usual - calm.usual) <= 1
    assert wild.num_expected / wild.depths.total() > 0.93 * calm.num_expected / calm.depths.total()


def test_a_machine_that_gets_slower_is_no_reason_to_change() -> None:
    """All rounds take ever longer, to twice as long."""
    machine = linear(1.0, 0.08, 0.06)
    steady_run = run(auto(), machine, CODE, 1500)
    slowing = run(auto(), machine, CODE, 1500, slowness=lambda index: 1 + min(index / 300, 1))
    assert abs(slowing.usual - steady_run.usual) <= 1


@pytest.mark.parametrize("machine", [THREEFOLD, linear(1.0, 0.7, 0.1), CHEAP])
def test_probes_cost_little(machine: CostCurve) -> None:
    """On a text that nothing predicts, all rounds that were tried for it lose a half per cent."""
    done = run(auto(machine), machine, HOPELESS, 3000)
    assert done.reasons[PROBE] > 3
    assert done.total_s < 1.015 * 3000 * machine.round_s(0, 100)


def test_drafting_comes_back_when_acceptance_does() -> None:
    """A thousand tokens of noise, then code; within a hundred tokens it is drafted as usual."""
    machine = linear(1.0, 0.15, 0.06)
    text = Text(lambda emitted: [0.02] * 16 if emitted < 1000 else [0.9] * 16)
    policy = auto(machine)
    noise = run(policy, machine, HOPELESS, 1000)
    assert noise.usual == 0
    back = run(policy, machine, replace(text, rates=lambda emitted: [0.9] * 16), 800)
    assert back.usual >= 3
    assert back.num_tokens / back.depths.total() > 3


def test_unpredictable_text_soon_is_decoded_plainly() -> None:
    """The first rounds on a text are a guess, and few refusals are enough."""
    machine = linear(1.0, 0.3, 0.08)
    done = run(auto(machine), machine, HOPELESS, 100)
    assert done.depths[0] >= 85


def test_plain_rounds_are_planned_ahead() -> None:
    """Where plain decoding is best, the next round is known before the last token is."""
    policy = auto(THREEFOLD)
    asked = Counted(policy)
    done = run(asked, THREEFOLD, HOPELESS, 300)
    assert done.depths[0] > 280
    assert asked.num_plans < 40


class Counted:
    """A policy that counts how often it is asked for a plan that may draft."""

    most = MAX_DEPTH

    def __init__(self, policy: AutoDepth) -> None:
        self.policy, self.num_plans = policy, 0

    def plan(self, ask: Ask) -> Plan:
        self.num_plans += 1
        return self.policy.plan(ask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


def test_an_exact_repeat_is_drafted_deeper_than_the_head_goes() -> None:
    """A passage costs no drafting, and all of it recurs."""
    machine = linear(1.0, 0.08, 0.06)
    done = run(auto(machine), machine, steady(0.4, 0.2, recurs=0.99), 1500)
    assert done.reasons[PASSAGE] > 0.8 * done.depths.total()
    assert done.usual >= 8


def test_a_passage_that_never_recurs_is_left_alone() -> None:
    """After few tries, whatever the head does."""
    machine = linear(1.0, 0.2, 0.06)
    done = run(auto(machine), machine, steady(0.6, 0.4, recurs=0.02), 800)
    assert done.reasons[PASSAGE] < 0.1 * done.depths.total()


def test_a_mixture_of_experts_is_drafted_less_deeply() -> None:
    """Each row reads experts of its own."""
    dense = run(auto(kind="apple, m4"), shipped_curve("apple, m4"), CODE, 800)
    machine = shipped_curve("apple, m4", Experts(128, 8))
    mixed = run(auto(machine), machine, CODE, 800)
    assert mixed.usual < dense.usual


def test_without_the_clock_the_depths_are_a_function_of_the_text() -> None:
    """Two machines of different speed, the same text: the same rounds."""

    def done(slowness: Callable[[int], float]) -> Run:
        policy = AutoDepth(Pace(shipped_curve("cpu")), SHIPPED_PRIORS, uses_clock=False)
        return run(policy, CHEAP, CODE, 500, slowness=slowness)

    assert done(noisy(1, 1.0)).depths == done(noisy(2, 1.0)).depths


def test_reasons_are_told() -> None:
    """Every round has one of the reasons there are."""
    done = run(auto(CHEAP), CHEAP, steady(0.5, recurs=0.6), 600)
    assert set(done.reasons) <= {BEST, PLAIN, PASSAGE, PROBE}
    assert done.reasons.total() == done.depths.total()


def test_where_the_head_is_sure_it_drafts_on_and_where_not_it_stops() -> None:
    """Thresholds rise with what a row costs, and are those of tokens per second."""
    machine = CostCurve((1,), ((1.0, 1.05, 1.3, 1.7, 2.1),), (0.05,))
    plan = auto(machine).plan(Ask(100, 16, NOTHING, has_head=True, reads_chances=True))
    assert plan.num_head > 2
    assert list(plan.least[:3]) == sorted(plan.least[:3])
    assert plan.least[0] < 0.2 < plan.least[2]
    assert plan.asks[0] == 0 < plan.asks[1]


def test_how_sure_a_head_is_is_measured_by_what_is_accepted() -> None:
    """One that is always sure and half the time wrong is believed half as much."""
    policy = auto(CHEAP)
    for index in range(200):
        emitted = (1, 2) if index % 2 else (1,)
        policy.learn(Outcome(NOTHING, Plan(1), 1, 0, (0.95,), emitted))
    assert policy.chance(0.95) == pytest.approx(0.5, abs=0.1)
    assert policy.chance(0.3) == pytest.approx(0.3)


@contextmanager
def spoilt(place: object, name: str, other: object) -> Iterator[None]:
    with patch.object(place, name, other):
        yield


def never(self: object, *args: object, **kwargs: object) -> None:
    return None


MUTANTS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "acceptance alone": (
        CostCurve,
        "verify_at",
        lambda self, rows, context: 1.0,
        test_high_acceptance_does_not_make_up_for_high_cost,
    ),
    "the context is not looked at": (
        CostCurve,
        "_between",
        lambda self, values, context: values[0],
        lambda: test_the_depth_goes_by_the_context(32_000, 0),
    ),
    "nothing is learnt of the text": (
        Gains,
        "learn",
        never,
        test_each_text_gets_its_own_depth,
    ),
    "nothing is learnt of the time": (
        Pace,
        "learn",
        never,
        lambda: test_a_verify_pass_three_times_as_dear_means_plain_decoding(False),
    ),
    "nothing is ever tried": (
        AutoDepth,
        "_probed",
        never,
        test_drafting_comes_back_when_acceptance_does,
    ),
    "probes may cost what they like": (
        auto_depth,
        "PROBE_SHARE",
        1.0,
        lambda: test_probes_cost_little(THREEFOLD),
    ),
    "passages are not drafted": (
        AutoDepth,
        "_with_passage",
        lambda self, found, room, head, prospect: (head, 0),
        test_an_exact_repeat_is_drafted_deeper_than_the_head_goes,
    ),
    "the clock is looked at": (
        AutoDepth,
        "learn_time",
        lambda self, time: self.pace.learn(time),
        test_without_the_clock_the_depths_are_a_function_of_the_text,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str) -> None:
    """Each of these faults is seen by the test that is named with it."""
    place, attribute, other, test = MUTANTS[name]
    with spoilt(place, attribute, other), pytest.raises(AssertionError):
        test()
