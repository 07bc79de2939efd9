"""What a decode emits when it draws at random."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from mtplx import drafting, verification
from mtplx.draft_options import DraftOptions
from mtplx.models.llama import LlamaTarget
from mtplx.params import SamplingParams
from mtplx.rng import fresh_seed, round_uniforms
from mtplx.sampling import History, draw, warp
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from mtplx.warps import filters
from tests.tiny import (
    DIMS,
    HEAD_ALONE,
    ScriptedDrafter,
    WatchedTarget,
    assert_holds,
    finish,
    head_drafter,
    plain,
    random_prompt,
    scaled_head,
    start,
    tiny_head,
    tiny_target,
)

TARGET = tiny_target()
PROMPT = random_prompt(7)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=14)
FULL_SORT = "full sort of the vocabulary"


def logits_after(target: LlamaTarget, token_ids: Sequence[int]) -> mx.array:
    """[1, V], from an uncached pass."""
    hidden = target.forward(mx.array(list(token_ids)), target.make_cache())
    return target.logits(target.normalise(hidden))[-1:]


@pytest.mark.parametrize(
    "params",
    [
        SAMPLED,
        replace(SAMPLED, top_p=0.8, top_k=20, min_p=0.02),
        replace(SAMPLED, repetition_penalty=1.5, frequency_penalty=0.5, penalty_window=6),
    ],
)
def test_plain_decoding_draws_each_token_with_the_numbers_of_its_position(
    params: SamplingParams,
) -> None:
    """Though each round is queued before the last one's token is known."""
    reply = plain(TARGET, PROMPT, params, seed=11)
    for i, token_id in enumerate(reply):
        text = PROMPT + reply[:i]
        probs = warp(logits_after(TARGET, text), params, History(text)).probs
        numbers = round_uniforms(11, len(text), 0).choose
        assert draw(probs, numbers).item() == token_id


@pytest.mark.parametrize("depth", [0, 3])
def test_the_seed_decides_the_text(depth: int) -> None:
    """The same one gives the same text, from a warm state too; others, and fresh ones, differ."""
    state = DecodeState(TARGET, head_drafter(TARGET))

    def text(seed: int) -> tuple[int, ...]:
        return tuple(finish(start(state, PROMPT, SAMPLED, depth=depth, seed=seed)))

    assert len({text(seed) for seed in (3, 3, 3)}) == 1
    assert len({text(seed) for seed in range(5)}) == 5
    assert len({text(fresh_seed()) for _ in range(5)}) == 5


@pytest.mark.parametrize("depth", range(1, 7))
def test_the_state_after_random_acceptance_is_that_of_the_text(depth: int) -> None:
    """Drafts that are drawn, accepted and refused by chance leave the caches of a prefill."""
    state, stats = DecodeState(TARGET, head_drafter(TARGET)), DecodeStats()
    emitted: list[int] = []
    for emission in start(state, PROMPT, SAMPLED, depth=depth, seed=depth, stats=stats):
        emitted += emission.token_ids
        assert_holds(state, [*PROMPT, *emitted][:-1])
    assert stats.drafted[0] > 0


def test_a_certain_target_accepts_a_certain_draft() -> None:
    """Where one token has all the mass, a drafter that knows it is never refused."""
    params = replace(SAMPLED, top_k=1)
    reply = plain(TARGET, PROMPT, params, seed=1)
    drafter, stats = ScriptedDrafter(TARGET, PROMPT + reply, lambda position: 99), DecodeStats()
    rounds = start(DecodeState(TARGET, drafter), PROMPT, params, depth=6, seed=2, stats=stats)
    assert finish(rounds) == reply
    assert stats.acceptance_per_position == [1.0] * 6


WIDE = replace(
    DIMS, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_size=16, vocab_size=16_384
)


@dataclass(slots=True)
class HalfFlat(WatchedTarget):
    """Logits that are peaked after some histories and all but flat after others."""

    def logits(self, hidden: mx.array) -> mx.array:
        return self.inner.logits(hidden) * mx.where(hidden[:, :1] > 0, 8.0, 0.01)


@pytest.mark.parametrize("depth", [0, 3])
def test_a_filter_that_keeps_most_of_a_vocabulary_is_exact_and_counted(depth: int) -> None:
    """Rounds done again with a full sort emit what sorting everything at once would, and a round
    that was queued ahead on a wrong token leaves no trace."""
    target, params = tiny_target(dims=WIDE), replace(SAMPLED, top_p=0.95, max_tokens=8)
    num_redone = 0
    for seed in range(3):

        def reply(stats: DecodeStats, seed: int = seed) -> list[int]:
            drafter = ScriptedDrafter(target, [*PROMPT, *range(99)], lambda position: 1)
            state = DecodeState(HalfFlat(target), drafter)
            text = finish(start(state, PROMPT, params, depth=depth, seed=seed, stats=stats))
            assert_holds(state, [*PROMPT, *text[:-1]])
            return text

        stats, always = DecodeStats(), DecodeStats()
        text = reply(stats)
        with patch.object(filters, "_NUM_CANDIDATES", WIDE.vocab_size):
            assert reply(always) == text
        assert always.fallbacks[FULL_SORT] == 0
        assert stats.num_host_reads == stats.num_rounds + stats.fallbacks[FULL_SORT]
        num_redone += stats.fallbacks[FULL_SORT]
    assert 0 < num_redone < 3 * params.max_tokens


SMALL = replace(
    DIMS, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_size=16, vocab_size=8
)
SMALL_PROMPT = [1, 5, 2, 6, 1, 5, 2]  # recurs, so that it can be looked up
SHORT = SamplingParams(temperature=0.8, max_tokens=3)
MARGINS = ((1, 2), (0, 2), (0, 1), (2,), (0,), ())  # what is summed away: single tokens, pairs, all
Counts = NDArray[np.float64]


def joint_law(target: LlamaTarget) -> Counts:
    """[V, V, V], the law of three tokens drawn one after the other, by enumeration."""

    def after(*token_ids: int) -> Counts:
        text = [*SMALL_PROMPT, *token_ids]
        probs = warp(logits_after(target, text), SHORT, History(text)).probs
        return np.array(probs[0]).astype(np.float64)

    first = after()
    second = np.stack([after(a) for a in range(8)])
    third = np.stack([[after(a, b) for b in range(8)] for a in range(8)])
    return first[:, None, None] * second[:, :, None] * third


def decoded(
    target: LlamaTarget,
    num_texts: int,
    factor: float = 1.0,
    draft: DraftOptions = HEAD_ALONE,
    law: str = "block",
) -> Counts:
    """[V, V, V], how often each text of three tokens came, drafted two deep."""
    head = scaled_head(tiny_head(5, SMALL), factor)
    state, counts = DecodeState(target, head_drafter(target, head)), np.zeros((8, 8, 8))
    for seed in range(num_texts):
        params = replace(SHORT, law=law)
        text = finish(start(state, SMALL_PROMPT, params, depth=2, seed=seed, draft=draft))
        counts[tuple(text)] += 1
    return counts


def p_value(counts: Counts, law: Counts) -> float:
    """Of a chi-square test, cells pooled until at least five are expected in each."""
    order = np.argsort(law, axis=None)
    observed, expected = counts.ravel()[order], law.ravel()[order] * counts.sum()
    cells: list[list[float]] = [[0.0, 0.0]]
    for o, e in zip(observed, expected, strict=True):
        if cells[-1][1] >= 5:
            cells.append([0.0, 0.0])
        cells[-1][0] += o
        cells[-1][1] += e
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def least_p_value(counts: Counts, law: Counts) -> float:
    return min(p_value(counts.sum(axis=m), law.sum(axis=m)) for m in MARGINS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "draft"),
    [
        ("block", HEAD_ALONE),
        ("rejection", DraftOptions(stop=0.35)),
        ("block", DraftOptions("sampled", temperature=2.0, stop=0.2)),
        ("coupled", DraftOptions("lookup")),
    ],
)
def test_drafting_keeps_the_joint_law_of_the_first_tokens(law: str, draft: DraftOptions) -> None:
    """Real decodes against exact enumeration, up to chance of less than 1e-9."""
    target = tiny_target(3, SMALL)
    counts = decoded(target, 600, draft=draft, law=law)
    assert least_p_value(counts, joint_law(target)) > 1e-9 / len(MARGINS)


@pytest.mark.slow
def test_a_broken_head_keeps_the_law_too() -> None:
    """A head that gives NaN drafts something that the law knows how to correct."""
    target = tiny_target(3, SMALL)
    law = joint_law(target)
    assert least_p_value(decoded(target, 200, np.nan), law) > 1e-9 / len(MARGINS)


def draws_from_p(p: mx.array, support: mx.array | None, q: mx.array) -> mx.array:
    """A wrong residual."""
    return p


def accept_number(seed: int, position: int, step: int) -> mx.array:
    """Wrong numbers for a draft: those that decide whether it is kept."""
    return mx.repeat(round_uniforms(seed, position, step + 1).accept[step : step + 1], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [(verification, "residual", draws_from_p), (drafting, "draft_uniforms", accept_number)],
)
def test_a_wrong_law_would_be_seen(
    module: object, name: str, mutant: Callable[..., mx.array]
) -> None:
    """Two known mistakes fail the same comparison."""
    target = tiny_target(3, SMALL)
    with patch.object(module, name, mutant):
        counts = decoded(target, 800)
    assert least_p_value(counts, joint_law(target)) < 1e-9 / len(MARGINS)
