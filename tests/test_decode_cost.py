"""What a decode costs, and what it says it costs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.speculation import Draft, DraftInput, DrawDraft
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.foreign import mlx_lm_llama
from tests.tiny import (
    GREEDY,
    ChosenDepth,
    WatchedTarget,
    finish,
    head_drafter,
    plain,
    random_prompt,
    start,
    tiny_head,
    tiny_target,
    whole_vocabulary,
)

TARGET = tiny_target()
PROMPT = random_prompt(7)
REPLY = plain(TARGET, PROMPT)


@dataclass(slots=True)
class Costs:
    num_passes: int = 0
    num_reads: int = 0


@contextmanager
def counted_reads(costs: Costs) -> Iterator[None]:
    """Count how often the host asks an array for its numbers."""

    def counting(read: Callable[[mx.array], Any]) -> Callable[[mx.array], Any]:
        def counted(array: mx.array) -> Any:
            costs.num_reads += 1
            return read(array)

        return counted

    with (
        patch.object(mx.array, "item", counting(mx.array.item)),
        patch.object(mx.array, "tolist", counting(mx.array.tolist)),
    ):
        yield


def mlx_lm_costs(num_tokens: int, *, broken_off: bool) -> Costs:
    """Of mlx-lm's loop for so many tokens, which end it or after which the caller does."""
    from mlx_lm.generate import generate_step

    model, costs = mlx_lm_llama(TARGET), Costs()

    class Counted:
        layers = model.layers

        def __call__(self, token_ids: mx.array, cache: Any) -> mx.array:
            costs.num_passes += token_ids.shape[1] == 1
            logits: mx.array = model(token_ids, cache=cache)
            return logits

    with counted_reads(costs):
        rounds = generate_step(
            mx.array(PROMPT), Counted(), max_tokens=99 if broken_off else num_tokens
        )
        tokens = [token_id for _, (token_id, _) in zip(range(num_tokens), rounds, strict=False)]
        if not broken_off:
            assert not list(rounds)
    assert tokens == REPLY[:num_tokens]
    return costs


def our_costs(num_tokens: int, *, broken_off: bool) -> Costs:
    target, costs, stats = WatchedTarget(TARGET), Costs(), DecodeStats()
    params = replace(GREEDY, max_tokens=99 if broken_off else num_tokens)
    with counted_reads(costs):
        rounds = start(DecodeState(target, head_drafter(TARGET)), PROMPT, params, stats=stats)
        tokens = [r.token_ids[0] for _, r in zip(range(num_tokens), rounds, strict=False)]
        if not broken_off:
            assert not list(rounds)
    assert tokens == REPLY[:num_tokens]
    assert stats.num_forward_calls == target.num_passes - 1
    assert stats.num_host_reads == costs.num_reads
    return replace(costs, num_passes=target.num_passes - 1)  # but for the prefill


@pytest.mark.slow
@pytest.mark.parametrize("num_tokens", [1, 2, 10])
def test_plain_decoding_costs_what_it_costs_mlx_lm(num_tokens: int) -> None:
    """As many passes and reads for a text that is broken off; none in vain for one that ends."""
    cut = {"broken_off": True}
    assert our_costs(num_tokens, **cut) == mlx_lm_costs(num_tokens, **cut)
    theirs = mlx_lm_costs(num_tokens, broken_off=False)
    assert our_costs(num_tokens, broken_off=False) == replace(theirs, num_passes=num_tokens)
    assert theirs.num_passes == num_tokens + 1


@pytest.mark.parametrize("answer", [0, -3])
def test_plain_rounds_are_queued_before_the_last_one_is_read(answer: int) -> None:
    """While a caller has token n the pass for token n + 1 is on its way."""
    target, seen = WatchedTarget(TARGET), list[int]()
    for _ in start(DecodeState(target), PROMPT, depth=ChosenDepth(lambda context: answer)):
        seen.append(target.num_passes - 1)
    assert seen == [*range(2, GREEDY.max_tokens + 1), GREEDY.max_tokens]


@pytest.mark.parametrize("drafting", [False, True])
def test_a_depth_that_cannot_be_had_is_plain_decoding(drafting: bool) -> None:
    """Without a head, or without drafting, the policy is not asked and rounds are queued ahead."""
    state = DecodeState(TARGET, None if drafting else head_drafter(TARGET))
    asked: list[int] = []

    def choose(context: int) -> int:
        asked.append(context)
        return 3

    stats, depth = DecodeStats(), ChosenDepth(choose)
    rounds = start(state, PROMPT, depth=depth, drafting=drafting, stats=stats)
    assert next(rounds).token_ids == REPLY[:1]
    assert stats.num_forward_calls == 2
    assert finish(rounds) == REPLY[1:]
    assert asked == []


def burn() -> mx.array:
    """A zero that takes about a hundredth of a second to work out."""
    x = mx.ones((192, 192))
    for _ in range(24):
        x = (x @ x) * 1e-3
    return x[0, 0] * 0


def burn_s() -> float:
    """What a zero costs at present."""

    def once() -> float:
        started_s = time.perf_counter()
        mx.eval(burn())
        return time.perf_counter() - started_s

    return median(once() for _ in range(7))


class SlowDrafter(HeadDrafter):
    """Burns in each draft, or in each observation."""

    burns_in = "propose"

    def observe(self, rows: DraftInput) -> None:
        hidden = rows.hidden + burn() if self.burns_in == "observe" else rows.hidden
        super().observe(DraftInput(hidden, rows.token_ids))

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        hidden = rows.hidden + burn() if self.burns_in == "propose" else rows.hidden
        return super().propose(DraftInput(hidden, rows.token_ids), num_tokens, draw)


def timed(state: DecodeState, depth: int) -> DecodeStats:
    stats = DecodeStats()
    started_s = time.perf_counter()
    finish(start(state, PROMPT, depth=depth, stats=stats))
    elapsed_s = time.perf_counter() - started_s
    parts = (stats.prefill_s, stats.draft_s, stats.verify_s, stats.accept_s, stats.other_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(stats.total_s)
    assert stats.total_s <= elapsed_s
    return stats


@pytest.mark.parametrize("depth", [0, 2])
def test_the_evaluation_of_a_pass_is_charged_to_verifying(depth: int) -> None:
    """Work in the target's graph shows there and nowhere else."""
    target = WatchedTarget(TARGET)
    finish(start(DecodeState(target, head_drafter(TARGET)), PROMPT, depth=depth))
    target.after = lambda index, hidden: hidden + burn()
    before_s = burn_s()
    stats = timed(DecodeState(target, head_drafter(TARGET)), depth)
    burnt_s = min(before_s, burn_s()) * stats.num_forward_calls
    assert stats.verify_s > burnt_s / 2
    assert stats.verify_s > 3 * max(stats.draft_s, stats.accept_s)


@pytest.mark.parametrize("burns_in", ["propose", "observe"])
def test_the_evaluation_of_a_draft_is_charged_to_drafting(burns_in: str) -> None:
    """Work in the head's graph shows there, but for what it does over the prompt: prefill."""
    drafter = SlowDrafter(LlamaHead(TARGET, tiny_head()), whole_vocabulary(TARGET))
    drafter.burns_in = burns_in
    finish(start(DecodeState(TARGET, head_drafter(TARGET)), PROMPT, depth=2))
    before_s = burn_s()
    stats = timed(DecodeState(TARGET, drafter), 2)
    burnt_s = min(before_s, burn_s())
    if burns_in == "propose":
        assert stats.draft_s > burnt_s * (stats.num_rounds - 1) / 2
        assert stats.draft_s > 2 * max(stats.prefill_s, stats.accept_s)
    else:
        assert stats.prefill_s > burnt_s / 2


@pytest.mark.parametrize("depth", [0, 2])
def test_the_time_of_the_caller_is_charged_to_other(depth: int) -> None:
    """Also while a round that was queued ahead is waiting to be read."""
    state, stats = DecodeState(TARGET, head_drafter(TARGET)), DecodeStats()
    finish(start(state, PROMPT, depth=depth))
    num_rounds = 0
    for _ in start(state, PROMPT, depth=depth, stats=stats):
        num_rounds += 1
        time.sleep(0.1)
    slept_s = 0.1 * num_rounds
    assert slept_s <= stats.other_s <= stats.total_s
    assert max(stats.draft_s, stats.verify_s, stats.accept_s) < slept_s / 3


def test_stats_are_whole_at_every_round() -> None:
    """Whoever looks while a decode runs, or after it was broken off, sees parts that add up."""
    stats = DecodeStats()
    rounds = start(DecodeState(TARGET, head_drafter(TARGET)), PROMPT, depth=2, stats=stats)
    assert stats.other_s == 0
    for _ in range(3):
        next(rounds)
        parts = (stats.prefill_s, stats.draft_s, stats.verify_s, stats.accept_s, stats.other_s)
        assert min(parts) > 0
        assert stats.tokens_per_s > 0
    total_s = stats.total_s
    rounds.close()
    assert stats.total_s == total_s
