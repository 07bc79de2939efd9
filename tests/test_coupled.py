"""The coupled law: its noise, its draws, and that a seed decides the text."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from mtplx import coupled, rng
from mtplx.coupled import exponentials, race, verify_coupled
from mtplx.draft_options import DraftOptions
from mtplx.models.drafter import HeadDrafter
from mtplx.params import SamplingParams
from mtplx.rng import Purpose, noise_keys
from mtplx.speculation import Draft, Uniforms
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import (
    ScriptedDrafter,
    finish,
    head_drafter,
    plain,
    random_prompt,
    scaled_head,
    start,
    tiny_head,
    tiny_target,
)

FALSE_ALARM = 1e-9
COUPLED = SamplingParams(temperature=0.9, max_tokens=14, law="coupled")


def noise(num_keys: int, num_tokens: int, seed: int = 3) -> mx.array:
    ids = mx.arange(num_tokens, dtype=mx.uint32)
    return exponentials(noise_keys(seed, 0, num_keys), ids)


def test_the_noise_is_exponential() -> None:
    """Kolmogorov-Smirnov along tokens and along positions, at a false alarm rate of 1e-9."""
    for sample in (noise(1, 49_152), noise(20_000, 1)):
        assert stats.kstest(np.array(sample).ravel(), "expon").pvalue > FALSE_ALARM


def test_the_noise_of_tokens_and_positions_is_unrelated() -> None:
    """Neighbours and distant ones, along both and across seeds, are uncorrelated."""
    ranks = np.exp(-np.array(noise(64, 4096)).astype(np.float64)) - 0.5
    other = np.exp(-np.array(noise(64, 4096, seed=4)).astype(np.float64)) - 0.5
    num = ranks.size
    for rows, columns in ((0, 1), (0, 2), (0, 256), (1, 0), (1, 1), (7, 0)):
        moved = np.roll(ranks, (rows, columns), axis=(0, 1))
        assert abs((ranks * moved).sum()) * 12 / num < 7 / num**0.5
    assert abs((ranks * other).sum()) * 12 / num < 7 / num**0.5


def test_every_word_gives_a_number_and_larger_words_larger_ones() -> None:
    """From the smallest to the largest, none is zero or infinite, and float64 agrees."""
    edge = np.arange(2**16, dtype=np.uint32)
    spread = np.sort(np.random.default_rng(0).integers(2**32, size=2**18, dtype=np.uint32))
    for words in (edge, spread, 2**32 - 1 - edge[::-1]):
        found = np.array(coupled._exponential(mx.array(words.astype(np.uint32))))
        v = (words.astype(np.float64) + 0.5) / 2**32
        exact = -np.log1p(-v)
        assert found.min() > 0
        assert np.isfinite(found).all()
        assert np.all(np.diff(found) >= -1e-6 * found[1:])
        # 1 - v is known to 2**-24, the rest to float32's precision; the last 2**-22 is cut off.
        bound = exact * 2e-6 + 2**-24 / (1 - v)
        assert np.all((np.abs(found - exact) < bound)[v < 1 - 2**-22])
        assert np.all(found[v >= 1 - 2**-22] > 15)


def test_the_noise_of_a_token_depends_on_nothing_else() -> None:
    """A row alone, among others, or of a part of the vocabulary in any order is the same."""
    keys = noise_keys(5, 9, 4)
    rows = exponentials(keys, mx.arange(500, dtype=mx.uint32))
    ids = mx.array(np.random.default_rng(0).permutation(500)[:50].astype(np.int32))
    for i in range(4):
        alone = exponentials(noise_keys(5, 9 + i, 1), ids)
        assert mx.array_equal(alone[0], mx.take(rows[i], ids))


def test_a_race_draws_from_its_row() -> None:
    """Over positions the winners have the row's distribution, and none is impossible."""
    p = np.array([0.5, 0.0, 0.25, 0.2, 1e-3, 0.049], dtype=np.float32)
    won = race(mx.array(p), noise(40_000, len(p)))
    counts = np.bincount(np.array(won), minlength=len(p))
    assert counts[1] == 0
    held = p > 0
    expected = p[held] / p[held].sum() * counts.sum()
    assert stats.chisquare(counts[held], expected).pvalue > FALSE_ALARM


def test_rows_are_decided_alike_alone_and_together() -> None:
    """One row and many rows of the same numbers give the same tokens."""
    p = mx.array(np.random.default_rng(1).dirichlet(np.ones(5000) / 20, size=6).astype(np.float32))
    together = race(p, noise(6, 5000))
    for i in range(6):
        alone = race(p[i : i + 1], exponentials(noise_keys(3, i, 1), mx.arange(5000)))
        assert mx.array_equal(alone, together[i : i + 1])


@pytest.mark.parametrize("num_draft", [0, 1, 4])
def test_a_draft_is_kept_as_far_as_the_noise_agrees(num_draft: int) -> None:
    """The emitted tokens are the race's at every row, however far the draft foresaw them."""
    p = mx.array(np.random.default_rng(2).dirichlet(np.ones(30), size=num_draft + 1))
    p, keys = p.astype(mx.float32), noise_keys(1, 7, num_draft + 1)
    winners = np.array(race(p, exponentials(keys, mx.arange(30)))).tolist()
    for right in range(num_draft + 1):
        draft = winners[:right] + [(x + 1) % 30 for x in winners[right:num_draft]]
        unused = mx.zeros(0)
        kept = verify_coupled(
            p, Draft(mx.array(draft, dtype=mx.int32)), Uniforms(unused, unused, keys)
        )
        assert kept.num_accepted.item() == right
        assert np.array(kept.token_ids)[: right + 1].tolist() == winners[: right + 1]
        assert kept.num_underflows.item() == 0


def test_shared_noise_agrees_as_often_as_the_theory_says() -> None:
    """Between (1 - TV) / (1 + TV) and 1 - TV, up to six standard deviations."""
    generator = np.random.default_rng(4)
    for concentration in (0.3, 3.0):
        p, q = generator.dirichlet(np.full(40, concentration), size=2)
        shared = float(np.minimum(p, q).sum())
        numbers = noise(20_000, 40)
        winners = [race(mx.array(x.astype(np.float32)), numbers) for x in (p, q)]
        agreed = float(np.mean(np.array(winners[0] == winners[1])))
        assert shared / (2 - shared) - 0.02 < agreed < shared + 0.02


TARGET = tiny_target()
PROMPT = random_prompt(7)
REQUESTS = [
    COUPLED,
    replace(COUPLED, temperature=0.7, top_p=0.9, top_k=30),
    replace(COUPLED, repetition_penalty=1.3, frequency_penalty=0.4, penalty_window=5),
    replace(COUPLED, temperature=0.0),
]
Maker = Callable[[list[int]], HeadDrafter]


def constant(text: list[int]) -> HeadDrafter:
    return ScriptedDrafter(TARGET, [9] * 99, lambda position: 99)


def oracle(text: list[int]) -> HeadDrafter:
    return ScriptedDrafter(TARGET, PROMPT + text, lambda position: 99)


def random_head(text: list[int]) -> HeadDrafter:
    return head_drafter(TARGET)


def broken(text: list[int]) -> HeadDrafter:
    return head_drafter(TARGET, scaled_head(tiny_head(), np.nan))


@pytest.mark.parametrize("params", REQUESTS)
@pytest.mark.parametrize("drafter", [random_head, constant, oracle, broken])
def test_a_seed_decides_the_text_whoever_drafts(drafter: Maker, params: SamplingParams) -> None:
    """The same text without drafts and with them, at every depth and in every mode."""
    for seed, (depth, mode) in enumerate(product((1, 3, 7), ("auto", "greedy", "lookup"))):
        text = plain(TARGET, PROMPT, params, seed=seed)
        state = DecodeState(TARGET, drafter(text))
        draft = DraftOptions(mode=mode, stop=0.2 if depth == 3 else 0.0)
        rounds = start(state, PROMPT, params, depth=depth, seed=seed, draft=draft)
        assert finish(rounds) == text


def test_drafts_from_the_same_noise_are_accepted() -> None:
    """A head that knows the target's distribution is never refused: here the target itself."""

    class Twin(HeadDrafter):
        """Drafts from the target's own logits, by an uncached pass over the whole text."""

        text: list[int]

        def propose(self, rows: Any, num_tokens: int, draw: Any) -> Draft:
            drawn: list[int] = []
            for step in range(num_tokens):
                tokens = mx.array([*self.text, *drawn])
                hidden = TARGET.forward(tokens, TARGET.make_cache())
                column, _ = draw(TARGET.logits(TARGET.normalise(hidden))[-1:], step)
                drawn.append(int(column.item()))
            return Draft(mx.array(drawn, dtype=mx.int32))

    drafter = Twin(head_drafter(TARGET).head)
    drafter.text = list(PROMPT)
    counted = DecodeStats()
    draft = DraftOptions("sampled", temperature=0.9, stop=0, lookup=False)
    for emission in start(
        DecodeState(TARGET, drafter), PROMPT, COUPLED, depth=3, draft=draft, stats=counted
    ):
        drafter.text += emission.token_ids
    assert counted.acceptance_per_position == [1.0] * 3


def test_only_the_noise_decides() -> None:
    """Other numbers than the noise may change without changing a text."""
    text = plain(TARGET, PROMPT, COUPLED, seed=2)
    original = rng.words

    def other(seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
        moved = seed if purpose is Purpose.NOISE else seed + 1
        return original(moved, position, purpose, count, step=step)

    with patch.object(rng, "words", other):
        state = DecodeState(TARGET, head_drafter(TARGET))
        assert finish(start(state, PROMPT, COUPLED, depth=2, seed=2)) == text
        plain_law = replace(COUPLED, law="block")
        assert plain(TARGET, PROMPT, plain_law, seed=2) != plain(TARGET, PROMPT, plain_law, seed=3)
