"""Depths of real decodes: what they may change, what is told of them, and what they cost."""

import itertools
import time
from dataclasses import replace

import pytest

from mtplx import DraftOptions
from mtplx.auto_depth import AutoDepth
from mtplx.cache import SinkCache
from mtplx.costs import CostCurve, Tuned
from mtplx.errors import UsageError
from mtplx.generate import generate
from mtplx.loading.load import LoadedModel, load
from mtplx.models.drafter import HeadDrafter
from mtplx.pace import Pace
from mtplx.params import SamplingParams
from mtplx.shipped_costs import SHIPPED_PRIORS, shipped_curve
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import (
    GREEDY,
    ScriptedDrafter,
    WatchedTarget,
    assert_holds,
    finish,
    head_drafter,
    plain,
    random_prompt,
    start,
    tiny_target,
)
from tests.tiny_gguf import write_head, write_model

TARGET = tiny_target()
PROMPT = random_prompt(7)
LONG = replace(GREEDY, max_tokens=60)
REPLY = plain(TARGET, PROMPT, LONG)
TEXT = "one two three one two three one two three one two"
SAMPLED = SamplingParams(temperature=0.9, max_tokens=30, seed=5)
CHEAP = CostCurve((1,), ((1.0, 1.01, 1.02, 1.03, 1.04),), (0.01,))
DEAR = CostCurve((1,), ((1.0, 9.0, 17.0),), (1.0,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("depths")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


def frozen(curve: CostCurve) -> AutoDepth:
    """A policy that no clock disturbs."""
    return AutoDepth(Pace(curve, is_tuned=True), SHIPPED_PRIORS, uses_clock=False)


def knowing(slip: int = 99) -> DecodeState:
    """A state whose drafts are right up to a slip."""
    return DecodeState(TARGET, ScriptedDrafter(TARGET, PROMPT + REPLY, lambda position: slip))


@pytest.fixture
def wild_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by leaps that no depth can be made of."""
    leaps = itertools.cycle([1e-6, 3.0, 0.002, 0.9, 1e-4, 0.03, 11.0])
    now = itertools.accumulate(leaps)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))


@pytest.mark.parametrize("curve", [CHEAP, DEAR, shipped_curve("cpu")])
@pytest.mark.parametrize("slip", [0, 1, 99])
def test_the_text_at_temperature_0_is_that_of_plain_decoding(curve: CostCurve, slip: int) -> None:
    """Whatever the depths are, and the state holds it."""
    state = knowing(slip)
    assert finish(start(state, PROMPT, LONG, depth=frozen(curve))) == REPLY
    assert_holds(state, [*PROMPT, *REPLY[:-1]])


def test_right_drafts_are_drafted_deeply() -> None:
    """Where rows cost little; and most rounds are for that reason."""
    stats = DecodeStats()
    finish(start(knowing(), PROMPT, LONG, depth=frozen(CHEAP), stats=stats))
    assert stats.num_rounds < 16
    assert stats.reasons.most_common(1)[0][0] == "best"


def test_every_round_is_counted_with_its_depth_and_reason() -> None:
    """At a fixed depth, without drafting, and where the depth is chosen."""
    for depth, drafting in ((0, True), (2, True), (2, False), (frozen(CHEAP), True)):
        stats = DecodeStats()
        finish(start(knowing(1), PROMPT, LONG, depth=depth, drafting=drafting, stats=stats))
        assert stats.depths.total() == stats.reasons.total() == stats.num_rounds
        assert sum(k * count for k, count in stats.depths.items()) == sum(stats.drafted)


def test_where_nothing_pays_rounds_are_queued_ahead_as_without_drafting() -> None:
    """As many passes and reads, but for the few rounds in which something is tried."""
    draft = DraftOptions(lookup=False)
    counts = []
    for depth in (0, frozen(DEAR)):
        stats, target = DecodeStats(), WatchedTarget(TARGET)
        state, ahead = DecodeState(target, head_drafter(TARGET)), 0
        for index, _ in enumerate(
            start(state, PROMPT, LONG, depth=depth, stats=stats, draft=draft)
        ):
            ahead += target.num_passes - 1 > index + 1
        counts.append((stats.num_forward_calls, stats.num_host_reads, ahead))
    plainly, chosen = counts
    assert chosen[0] == plainly[0]
    assert chosen[1] <= plainly[1] + 6
    assert chosen[2] >= plainly[2] - 8


@pytest.mark.parametrize("law", ["block", "rejection"])
def test_a_seed_gives_the_same_text_whatever_the_clock_says(
    model: LoadedModel, law: str, wild_clock: None
) -> None:
    """Also after other requests, on a state that has learnt from them, and for several samples."""
    params = replace(SAMPLED, law=law)
    first = generate(model, TEXT, params)
    state = model.new_state()
    generate(model, TEXT, params, seed=None, temperature=1.2, state=state)
    assert generate(model, TEXT, params, state=state).token_ids == first.token_ids
    assert first.depth == "auto"
    twice = [[r.token_ids for r in generate(model, TEXT, params, n=2)] for _ in range(2)]
    assert twice[0] == twice[1]


def test_without_a_seed_the_clock_takes_part(model: LoadedModel) -> None:
    """What earlier requests took is known to the next one, also on another state."""
    params = replace(SAMPLED, seed=None)
    for _ in range(3):
        generate(model, TEXT, params)
    policy = generate_policy(model, params)
    assert policy.pace is generate_policy(model, params).pace
    assert policy.pace.rest_s(20, 1)[0] < 0.5  # seconds of a tiny model, not the curve's units


def generate_policy(model: LoadedModel, params: SamplingParams) -> AutoDepth:
    """What a request leaves on its state."""
    state = model.new_state()
    generate(model, TEXT, params, state=state)
    assert isinstance(state.policy, AutoDepth)
    return state.policy


def test_what_is_learnt_stays_with_the_state(model: LoadedModel) -> None:
    """The next turn goes on with it; one with a seed of its own does not touch it."""
    state, params = model.new_state(), replace(SAMPLED, seed=None)
    generate(model, TEXT, params, state=state)
    policy = state.policy
    generate(model, TEXT, params, state=state)
    generate(model, TEXT, SAMPLED, state=state)
    assert state.policy is policy


@pytest.mark.parametrize(
    "params", [replace(SAMPLED, law="coupled"), replace(SAMPLED, temperature=0)]
)
def test_where_depths_change_no_text_a_seed_needs_no_blind_clock(
    model: LoadedModel, params: SamplingParams, wild_clock: None
) -> None:
    """The same text as plain decoding, by a policy that learns what rounds take."""
    state = model.new_state()
    found = generate(model, TEXT, params, state=state)
    expected = generate(model, TEXT, params, depth=0)
    assert found.token_ids == expected.token_ids
    assert isinstance(state.policy, AutoDepth)


def test_a_profile_is_where_the_times_begin(model: LoadedModel) -> None:
    """Its curve and its classes, and text that nothing predicts besides."""
    tuned = replace(model, depth_costs=Tuned(DEAR, {"chat": (0.9,)}, "mine"))
    state = tuned.new_state()
    result = generate(tuned, TEXT, replace(SAMPLED, seed=None, law="coupled"), state=state)
    assert isinstance(state.policy, AutoDepth)
    assert state.policy.pace.curve is DEAR
    assert result.num_tokens > 0


@pytest.mark.parametrize(("asked", "used"), [(None, 6), (0, None), (9, 9)])
def test_the_head_looks_back_as_tuned_where_nobody_says_otherwise(
    asked: int | None, used: int | None, model: LoadedModel
) -> None:
    tuned = replace(model, depth_costs=Tuned(CHEAP, SHIPPED_PRIORS, "scripted", window=6))
    state = tuned.new_state()
    generate(tuned, TEXT, SAMPLED, depth=2, draft=DraftOptions(window=asked), state=state)
    assert isinstance(state.drafter, HeadDrafter)
    windows = [layer.window for layer in state.drafter.cache if isinstance(layer, SinkCache)]
    assert windows == [used]


def test_auto_is_what_nobody_says(model: LoadedModel) -> None:
    """By its name, by None and by saying nothing; without a head it is plain decoding."""
    depths = {generate(model, TEXT, SAMPLED, depth=depth).depth for depth in (None, "auto")}
    assert depths == {generate(model, TEXT, SAMPLED).depth} == {"auto"}
    headless = replace(model, head=None, shortlist=None)
    assert generate(headless, TEXT, SAMPLED).depth == 0


@pytest.mark.parametrize("depth", ["deep", -1, 17, True, 2.0])
def test_a_depth_that_cannot_be_is_refused(model: LoadedModel, depth: object) -> None:
    """With what may be."""
    with pytest.raises(UsageError, match="'auto' or a whole number from 0"):
        generate(model, TEXT, SAMPLED, depth=depth)  # type: ignore[call-overload]


def test_json_tells_the_depths(model: LoadedModel) -> None:
    """Rounds by drafted tokens and by reason."""
    told = generate(model, TEXT, SAMPLED).to_json()
    depths, reasons = told["depths"], told["depth_reasons"]
    assert isinstance(depths, dict)
    assert isinstance(reasons, dict)
    assert sum(depths.values()) == sum(reasons.values()) > 0
    assert told["depth"] == "auto"
