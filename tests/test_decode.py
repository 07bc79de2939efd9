"""What a decode emits when nothing is drawn at random, and the state that it leaves."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import PromptTooLongError, UsageError
from mtplx.models.drafter import HeadDrafter
from mtplx.models.llama import LlamaTarget
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import (
    DIMS,
    GREEDY,
    ChosenDepth,
    ScriptedDrafter,
    assert_holds,
    finish,
    head_drafter,
    plain,
    poison,
    random_prompt,
    scaled_head,
    start,
    tiny_head,
    tiny_target,
)
from tests.warps.reference import expected_scores

TARGET = tiny_target()
PROMPT = random_prompt(7)
REPLY = plain(TARGET, PROMPT)
BLOCKS = [(k, slip) for k in range(1, 7) for slip in range(k + 1)]

PENALTIES = [
    replace(GREEDY, repetition_penalty=1.7),
    replace(GREEDY, presence_penalty=2.0),
    replace(GREEDY, frequency_penalty=1.5),
    replace(GREEDY, frequency_penalty=-0.5, penalty_window=3),
    replace(
        GREEDY,
        repetition_penalty=0.8,
        frequency_penalty=0.7,
        logit_bias={REPLY[0]: -np.inf, REPLY[1]: 1.5},
    ),
]


def script(slip: int, reply: list[int] = REPLY) -> ScriptedDrafter:
    """Drafts the reply, but for one token in each draft."""
    return ScriptedDrafter(TARGET, PROMPT + reply, lambda position: slip)


def test_plain_decoding_takes_the_most_probable_token_after_all_before_it() -> None:
    """Each token is the argmax of an uncached pass over the prompt and what was emitted."""
    for i, token_id in enumerate(REPLY):
        hidden = TARGET.forward(mx.array(PROMPT + REPLY[:i]), TARGET.make_cache())
        assert mx.argmax(TARGET.logits(TARGET.normalise(hidden))[-1]).item() == token_id


@pytest.mark.parametrize(("depth", "slip"), BLOCKS)
def test_wherever_a_draft_goes_wrong_the_state_is_that_of_the_text(depth: int, slip: int) -> None:
    """The reply is plain decoding's, and after every round the caches are a fresh prefill's.

    Rows that were rejected are made NaN, so that whoever reads one emits nothing sensible.
    """
    drafter, emitted = script(slip), list[int]()
    state = DecodeState(TARGET, drafter)
    for emission in start(state, PROMPT, depth=depth):
        emitted += emission.token_ids
        poison(state.cache)
        poison(drafter.cache)
        assert_holds(state, [*PROMPT, *emitted][:-1])
    assert emitted == REPLY


@pytest.mark.parametrize(("depth", "slip"), [(1, 0), (1, 1), *((5, slip) for slip in range(6))])
def test_counts_are_those_of_the_script(depth: int, slip: int) -> None:
    """Each round emits the accepted tokens and one more, until max_tokens cuts the last draft."""
    stats, lengths = DecodeStats(), list[int]()
    for emission in start(DecodeState(TARGET, script(slip)), PROMPT, depth=depth, stats=stats):
        lengths.append(len(emission.token_ids))
    assert set(lengths[:-1]) <= {slip + 1}
    assert sum(lengths) == stats.num_tokens == GREEDY.max_tokens
    assert stats.num_rounds == stats.num_forward_calls == stats.num_host_reads == len(lengths)
    assert stats.acceptance_length == pytest.approx(GREEDY.max_tokens / len(lengths))
    assert stats.num_prompt_tokens == len(PROMPT)
    assert all(share == (i < slip) for i, share in enumerate(stats.acceptance_per_position))


def oracle(target: LlamaTarget, prompt: list[int]) -> HeadDrafter:
    return ScriptedDrafter(target, prompt + plain(target, prompt), lambda position: 99)


def broken(factor: float) -> Callable[[LlamaTarget, list[int]], HeadDrafter]:
    return lambda target, prompt: head_drafter(target, scaled_head(tiny_head(), factor))


@pytest.mark.parametrize("depth", range(1, 7))
@pytest.mark.parametrize(
    "drafter",
    [broken(1), broken(0), broken(np.nan), oracle],
    ids=["random", "zero", "nan", "oracle"],
)
def test_no_drafter_changes_a_greedy_reply(
    depth: int, drafter: Callable[[LlamaTarget, list[int]], HeadDrafter]
) -> None:
    """A random head, one that says nothing, a broken one and one that is always right."""
    target, prompt = tiny_target(depth), random_prompt(3 + depth)
    state = DecodeState(target, drafter(target, prompt))
    assert finish(start(state, prompt, depth=depth)) == plain(target, prompt)


@pytest.mark.parametrize("params", PENALTIES)
def test_penalties_count_the_history_of_each_row(params: SamplingParams) -> None:
    """At every acceptance position the reply is the float64 argmax after its own history."""
    reply = plain(TARGET, PROMPT, params)
    for i, token_id in enumerate(reply):
        history = PROMPT + reply[:i]
        hidden = TARGET.forward(mx.array(history), TARGET.make_cache())
        logits = np.array(TARGET.logits(TARGET.normalise(hidden))[-1]).astype(np.float64)
        assert np.argmax(expected_scores(logits, params, history)) == token_id
    for slip in range(5):
        state = DecodeState(TARGET, script(slip, reply))
        assert finish(start(state, PROMPT, params, depth=4)) == reply


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize("num_tokens", range(1, 8))
def test_an_end_token_ends_the_text_wherever_it_stands(depth: int, num_tokens: int) -> None:
    """It is emitted last, nothing behind it is held, and the next turn is a cold one's."""
    end = REPLY[num_tokens - 1]
    expected = REPLY[: REPLY.index(end) + 1]
    for stop_ids, params in (([end], GREEDY), ([], replace(GREEDY, stop_ids=(end,)))):
        state, stats = DecodeState(TARGET, script(99)), DecodeStats()
        rounds = list(start(state, PROMPT, params, depth=depth, stop_ids=stop_ids, stats=stats))
        assert [t for r in rounds for t in r.token_ids] == expected
        assert [r.finish_reason for r in rounds] == [None] * (len(rounds) - 1) + ["stop"]
        assert stats.num_tokens == len(expected)
        assert_holds(state, [*PROMPT, *expected[:-1]])
        turn = [*PROMPT, *expected, 9, 8]
        assert finish(start(state, turn, depth=depth)) == plain(TARGET, turn)


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_max_tokens_ends_the_text_wherever_it_falls(depth: int, max_tokens: int) -> None:
    """So many are emitted, nothing behind them is held, and the next turn is a cold one's."""
    state, stats = DecodeState(TARGET, script(99)), DecodeStats()
    params = replace(GREEDY, max_tokens=max_tokens)
    rounds = list(start(state, PROMPT, params, depth=depth, stats=stats))
    assert [t for r in rounds for t in r.token_ids] == REPLY[:max_tokens]
    assert [r.finish_reason for r in rounds] == [None] * (len(rounds) - 1) + ["length"]
    assert stats.num_tokens == max_tokens
    assert_holds(state, [*PROMPT, *REPLY[: max_tokens - 1]])
    turn = [*PROMPT, *REPLY[:max_tokens], 9, 8]
    assert finish(start(state, turn, depth=depth)) == plain(TARGET, turn)


def test_an_end_token_at_the_limit_is_an_end() -> None:
    """Where both fall on one token the reason is that the model stopped."""
    params = replace(GREEDY, max_tokens=3)
    for depth in (0, 4):
        state = DecodeState(TARGET, script(99))
        *_, last = start(state, PROMPT, params, depth=depth, stop_ids=[REPLY[2]])
        assert last.finish_reason == "stop"


@pytest.mark.parametrize("period", [2, 3])
@pytest.mark.parametrize("slip", [0, 2, 99])
def test_a_depth_that_comes_and_goes_loses_no_rows(period: int, slip: int) -> None:
    """Plain rounds, some of them queued ahead, between drafting ones: same text, same state."""
    for phase in range(period):
        state = DecodeState(TARGET, script(slip))

        def choose(context: int, phase: int = phase) -> int:
            return 3 if (context + phase) % period == 0 else 0

        assert finish(start(state, PROMPT, depth=ChosenDepth(choose))) == REPLY
        assert_holds(state, [*PROMPT, *REPLY[:-1]])


@pytest.mark.parametrize("depth", [0, 3])
def test_a_prompt_of_one_token_can_be_continued(depth: int) -> None:
    """There is no hidden state to draft from at first; the reply is plain decoding's."""
    state = DecodeState(TARGET, head_drafter(TARGET))
    reply = finish(start(state, [5], depth=depth))
    assert reply == plain(TARGET, [5])
    assert_holds(state, [5, *reply[:-1]])


@pytest.mark.parametrize("depth", [0, 3, 500])
@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_full_context_ends_the_text(depth: int, room: int) -> None:
    """Prompt and reply together fill the context and never pass it, even in a draft."""
    small = tiny_target(dims=replace(DIMS, context_length=len(PROMPT) + room))
    drafter = ScriptedDrafter(small, PROMPT + REPLY, lambda position: 99)
    rounds = list(start(DecodeState(small, drafter), PROMPT, depth=depth))
    assert [t for r in rounds for t in r.token_ids] == REPLY[:room]
    assert rounds[-1].finish_reason == "length"


@pytest.mark.parametrize("excess", [0, 1, 100])
def test_a_prompt_that_leaves_no_room_is_refused_before_any_pass(excess: int) -> None:
    """The error names both lengths, and the state is as before."""
    small = tiny_target(dims=replace(DIMS, context_length=16))
    state = DecodeState(small)
    with pytest.raises(PromptTooLongError, match=rf"{16 + excess} tokens.*at most 15"):
        finish(start(state, random_prompt(16 + excess)))
    assert state.token_ids == []
    assert finish(start(state, PROMPT)) == REPLY[:9]


@pytest.mark.parametrize(("prompt", "message"), [([], "no tokens"), ([1, 64], "1 to 64, .* 63")])
def test_a_prompt_that_is_none_is_refused(prompt: list[int], message: str) -> None:
    """There has to be something to continue, and the model has to know it."""
    with pytest.raises(UsageError, match=message):
        finish(start(DecodeState(TARGET), prompt))


@pytest.mark.parametrize("length", [511, 512, 513, 514, 1025, 1026])
def test_a_prompt_of_several_prefill_passes_is_continued_as_one(length: int) -> None:
    """At the edges between passes too, plainly and with drafts."""
    prompt, params = random_prompt(length, 1), SamplingParams(temperature=0, max_tokens=6)
    cache = TARGET.make_cache()
    hidden = TARGET.forward(mx.array(prompt), cache)
    expected = [mx.argmax(TARGET.logits(TARGET.normalise(hidden))[-1]).item()]
    while len(expected) < params.max_tokens:
        hidden = TARGET.forward(mx.array(expected[-1:]), cache)
        expected.append(mx.argmax(TARGET.logits(TARGET.normalise(hidden))[-1]).item())
    for depth in (0, 2):
        state = DecodeState(TARGET, head_drafter(TARGET))
        assert finish(start(state, prompt, params, depth=depth)) == expected
