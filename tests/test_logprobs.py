"""Log-probabilities are the target's, whatever drafted the token."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtplx.logprobs import TokenLogprobs, packed_logprobs, unpacked_logprobs
from mtplx.params import SamplingParams
from mtplx.rng import gate_uniforms
from mtplx.sampling import History, warp
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.test_decode_sampled import logits_after
from tests.tiny import ScriptedDrafter, head_drafter, plain, random_prompt, start, tiny_target

TARGET = tiny_target()
PROMPT = random_prompt(7)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=14, logprobs=3)
WARPED = replace(
    SAMPLED,
    top_k=12,
    xtc_probability=0.5,
    frequency_penalty=0.4,
    dry_multiplier=0.5,
    logit_bias={3: 1.0},
    logprobs_of="sampling",
)


def of(
    logits: Sequence[Sequence[float]] | NDArray[np.float64], tokens: list[int], **fields: Any
) -> list[TokenLogprobs]:
    """What is read for rows of logits and the tokens that stand there."""
    params = SamplingParams(temperature=1.0, **fields)
    rows = mx.array(np.array(logits, dtype=np.float32))
    warped = warp(rows, params, History((), mx.zeros(len(tokens) - 1, dtype=mx.int32)))
    numbers = packed_logprobs(warped, mx.array(tokens), params).tolist()
    assert isinstance(numbers, list)
    return list(unpacked_logprobs(numbers, len(tokens), tokens))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 400), st.integers(0, 12), st.integers(0, 10**6))
def test_the_most_probable_tokens_are_listed_best_first(size: int, top: int, seed: int) -> None:
    """With the model's log-probabilities, equal ones by id; all of them where there are no more."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-8, 8, size=(3, size)) / 2  # full of ties
    tokens = rng.integers(0, size, size=3).tolist()
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, token_id, found in zip(
        expected, tokens, of(logits, tokens, logprobs=top), strict=True
    ):
        order = sorted(range(size), key=lambda i: (-row[i], i))[:top]
        assert found.token_id == token_id
        assert [i for i, _ in found.top] == order
        values = [found.logprob, *[value for _, value in found.top]]
        np.testing.assert_allclose(values, [row[token_id], *row[order]], atol=2e-5)


@pytest.mark.parametrize("source", ["model", "sampling"])
def test_impossible_tokens_are_left_out(source: str) -> None:
    """-inf is no log-probability to tell, so a list can be shorter than was asked for."""
    [found] = of([[0, -math.inf, 1, -math.inf]], [2], logprobs=3, logprobs_of=source)
    assert [token_id for token_id, _ in found.top] == [2, 0]


def test_the_sources_differ_by_the_warps() -> None:
    """One is before bias, filters and temperature, the other after."""
    fields: dict[str, Any] = {"logit_bias": {0: 5.0}, "top_k": 1}
    [before] = of([[0, 0]], [0], logprobs=2, logprobs_of="model", **fields)
    [after] = of([[0, 0]], [0], logprobs=2, logprobs_of="sampling", **fields)
    assert before.logprob == pytest.approx(math.log(0.5))
    assert (after.logprob, after.top) == (0, ((0, 0.0),))


@pytest.mark.parametrize("law", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("params", [SAMPLED, WARPED])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_emitted_tokens_have_the_targets_log_probabilities(
    depth: int, params: SamplingParams, law: str
) -> None:
    """Accepted, recovered and bonus tokens alike, each after its own history."""
    params, stats = replace(params, law=law), DecodeStats()
    state, text = DecodeState(TARGET, head_drafter(TARGET)), list(PROMPT)
    for emission in start(state, PROMPT, params, depth=depth, seed=4, stats=stats):
        assert len(emission.logprobs) == len(emission.token_ids)
        for token_id, found in zip(emission.token_ids, emission.logprobs, strict=True):
            logits = logits_after(TARGET, text)
            history = History(text, gates=gate_uniforms(4, len(text), 1))
            if params.logprobs_of == "model":
                expected = logits - mx.logsumexp(logits, axis=-1)
            else:
                expected = mx.log(warp(logits, params, history).probs)
            row = np.array(expected)[0]
            assert found.token_id == token_id
            assert found.logprob == pytest.approx(row[token_id], abs=1e-4)
            for other, value in found.top:
                assert value == pytest.approx(row[other], abs=1e-4)
            assert found.top[0][1] == pytest.approx(row.max(), abs=1e-4)
            text.append(token_id)
    assert stats.num_host_reads == stats.num_rounds


@pytest.mark.parametrize("max_tokens", range(1, 6))
def test_a_block_that_is_cut_has_no_log_probabilities_of_the_rest(max_tokens: int) -> None:
    """As many as tokens, also where max_tokens or an end token cuts an accepted draft."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0)
    reply = plain(TARGET, PROMPT, replace(params, max_tokens=9))
    for stop_ids in ((), (reply[3],)):
        drafter = ScriptedDrafter(TARGET, PROMPT + reply, lambda position: 99)
        rounds = start(DecodeState(TARGET, drafter), PROMPT, params, depth=7, stop_ids=stop_ids)
        for emission in rounds:
            assert [x.token_id for x in emission.logprobs] == emission.token_ids


def test_nobody_pays_for_log_probabilities_that_nobody_asked_for() -> None:
    """Without the field there are none."""
    params = replace(SAMPLED, logprobs=None)
    rounds = start(DecodeState(TARGET, head_drafter(TARGET)), PROMPT, params, depth=2)
    assert all(emission.logprobs == () for emission in rounds)
