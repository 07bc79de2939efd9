"""Warps that depend on what was said, in whole decodes."""

import itertools
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import SamplingError
from mtplx.params import SamplingParams
from mtplx.rng import gate_uniforms, round_uniforms
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

TARGET = tiny_target()
PROMPT = random_prompt(9)
READ = "tokens read for logits processors"
WARPS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "penalty_window": 5},
    "dry": {
        "dry_multiplier": 2.0,
        "dry_allowed_length": 1,
        "dry_window": 8,
        "dry_breaker_ids": (3,),
    },
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "typical": {"typical_p": 0.8, "allowed_ids": tuple(range(0, 64, 2))},
    "all": {
        "top_k": 30,
        "min_p": 0.01,
        "typical_p": 0.95,
        "xtc_probability": 0.3,
        "dry_multiplier": 1.0,
        "presence_penalty": 0.5,
        "logit_bias": {5: 2.0, 9: -np.inf},
    },
}


class Listener:
    """A processor that writes down what it is shown and favours a token that depends on it."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, token_ids: mx.array, logits: mx.array) -> mx.array:
        seen = [int(token_id) for token_id in np.array(token_ids)]
        self.seen.append(seen)
        return mx.where(mx.arange(logits.shape[-1]) == sum(seen) % 64, logits + 4.0, logits)


@pytest.mark.parametrize("name", WARPS)
@pytest.mark.parametrize("depth", [1, 4])
def test_drafting_changes_nothing_about_a_coupled_text(name: str, depth: int) -> None:
    """With the noise of its positions fixed, every text is that of plain decoding, so each row
    had the distribution that plain decoding has there."""
    params = SamplingParams(temperature=0.9, law="coupled", max_tokens=16, **WARPS[name])
    for seed in range(3):
        expected = plain(TARGET, PROMPT, params, seed=seed)
        state = DecodeState(TARGET, head_drafter(TARGET))
        assert finish(start(state, PROMPT, params, depth=depth, seed=seed)) == expected


@pytest.mark.parametrize("slip", [0, 1, 2, 99])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_processor_is_shown_what_plain_decoding_shows_it(depth: int, slip: int) -> None:
    """At every position that stands in the text, once, and the text is that of plain decoding."""
    alone = Listener()
    expected = plain(TARGET, PROMPT, replace(GREEDY, processors=(alone,)))
    listener, stats = Listener(), DecodeStats()
    drafter = ScriptedDrafter(TARGET, PROMPT + expected, lambda position: slip)
    params = replace(GREEDY, processors=(listener,))
    rounds = start(DecodeState(TARGET, drafter), PROMPT, params, depth=depth, stats=stats)
    assert finish(rounds) == expected
    prefixes = [PROMPT + expected[:i] for i in range(len(expected))]
    assert alone.seen == prefixes
    assert [listener.seen.count(prefix) for prefix in prefixes] == [1] * len(prefixes)
    assert len(listener.seen) == stats.num_rounds + sum(stats.drafted)


@pytest.mark.parametrize("depth", [0, 2])
def test_what_processors_cost_is_counted(depth: int) -> None:
    """Each round is told as a fallback, and no round is queued ahead."""
    target, stats = WatchedTarget(TARGET), DecodeStats()
    params = replace(GREEDY, processors=(Listener(),))
    state = DecodeState(target, head_drafter(TARGET))
    for _ in start(state, PROMPT, params, depth=depth, stats=stats):
        assert target.num_passes == stats.num_rounds + 1
    assert stats.fallbacks[READ] == stats.num_rounds


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("fails_at", [0, 3])
def test_a_processor_that_fails_leaves_a_state_that_is_good(depth: int, fails_at: int) -> None:
    """Its error comes through, and the next request says what a fresh state says."""
    reply = plain(TARGET, PROMPT)
    calls = iter(range(1000))

    def failing(token_ids: mx.array, logits: mx.array) -> mx.array:
        if next(calls) >= fails_at:
            raise ZeroDivisionError
        return logits

    state = DecodeState(TARGET, head_drafter(TARGET))
    with pytest.raises(ZeroDivisionError):
        finish(start(state, PROMPT, replace(GREEDY, processors=(failing,)), depth=depth))
    assert finish(start(state, PROMPT, depth=depth)) == reply
    assert_holds(state, [*PROMPT, *reply[:-1]])


@pytest.mark.parametrize("depth", [0, 3])
def test_a_processor_that_forbids_everything_is_an_error_of_the_request(depth: int) -> None:
    """It is not blamed on the model, and the state is good for another request."""
    reply = plain(TARGET, PROMPT)

    def dead_end(token_ids: mx.array, logits: mx.array) -> mx.array:
        return logits if token_ids.size < len(PROMPT) + 2 else logits - mx.inf

    state = DecodeState(TARGET, head_drafter(TARGET))
    with pytest.raises(SamplingError, match="at least one token"):
        finish(start(state, PROMPT, replace(GREEDY, processors=(dead_end,)), depth=depth))
    assert finish(start(state, PROMPT, depth=depth)) == reply


def test_xtc_goes_by_the_position_and_not_by_the_round() -> None:
    """Whether it acts at a position is the same for every depth, drafts and rounds done again."""
    always = SamplingParams(temperature=0.9, top_k=2, xtc_threshold=0.01, max_tokens=12)
    texts = []
    for depth in (0, 1, 3):
        state = DecodeState(TARGET, head_drafter(TARGET))
        params = replace(always, xtc_probability=0.5, law="coupled")
        texts.append(finish(start(state, PROMPT, params, depth=depth, seed=3)))
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != plain(TARGET, PROMPT, replace(always, law="coupled"), seed=3)


def test_the_numbers_of_xtc_belong_to_positions() -> None:
    """However many are asked for, from wherever; other seeds and purposes have others."""
    numbers = np.array(gate_uniforms(3, 20, 40))
    assert numbers[5] == np.array(gate_uniforms(3, 25, 1))[0]
    assert numbers.min() >= 0
    assert numbers.max() < 1
    others = [gate_uniforms(4, 20, 40), round_uniforms(3, 20, 39).choose[:, 0]]
    assert all(len({*numbers.tolist()} & {*np.array(o).tolist()}) == 0 for o in others)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_grammar_is_not_asked_behind_a_token_it_forbids(depth: int) -> None:
    """Tokens must alternate between even and odd: what is drafted against that is only refused."""

    def alternating(token_ids: mx.array, logits: mx.array) -> mx.array:
        after = [int(token_id) % 2 for token_id in np.array(token_ids)[len(PROMPT) - 1 :]]
        assert all(a != b for a, b in itertools.pairwise(after)), "no such text"
        return mx.where(mx.arange(logits.shape[-1]) % 2 != after[-1], logits, -mx.inf)

    params = replace(GREEDY, processors=(alternating,))
    expected = plain(TARGET, PROMPT, params)
    for slips in itertools.product(range(depth), repeat=2):  # a token's neighbour is forbidden

        def slip_at(position: int, slips: tuple[int, ...] = slips) -> int:
            return slips[position % 2]

        state = DecodeState(TARGET, ScriptedDrafter(TARGET, [*PROMPT, *expected], slip_at))
        assert finish(start(state, PROMPT, params, depth=depth)) == expected
