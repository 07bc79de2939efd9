"""Chi-square of real draws through warp, draw and the laws, at a false alarm rate of 1e-9."""

from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from mtplx import coupled, sampling
from mtplx.rng import noise_keys
from mtplx.sampling import History, SamplingParams
from mtplx.speculation import Uniforms
from tests.exact.closed_forms import acceptance_and_weights
from tests.exact.draws import (
    FALSE_ALARM,
    Floats,
    Ints,
    as_distribution,
    assert_fits,
    count_given,
    count_law,
    one_round,
    uniform_pairs,
    verify_lanes,
    warped_table,
    whole_texts,
)

NUM_DRAFT = 3
PINNED = [
    [3130775554, 3154871824, 4284930541],
    [4049257564, 3670386835, 3118078903],
]
TARGETS = {
    "plain": SamplingParams(temperature=1.0),
    "filtered": SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
}


@pytest.mark.parametrize(
    ("law", "target"),
    [
        pytest.param("rejection", "plain", marks=pytest.mark.slow),
        pytest.param("block", "plain", marks=pytest.mark.slow),
        ("block", "filtered"),
        ("coupled", "filtered"),
    ],
)
def test_a_round_draws_from_the_target(law: str, target: str) -> None:
    """100,000 rounds at V = 32: the first two tokens together, and how many drafts are kept."""
    p = warped_table(32, 1, TARGETS[target])
    q = warped_table(32, 2, SamplingParams(temperature=0.9, top_p=0.95))
    counts, tokens = one_round(law, p, q, NUM_DRAFT, 100_000, seed=3)
    target_law, draft_law = as_distribution(p), as_distribution(q)

    assert_fits(np.bincount(tokens[:, 0], minlength=32), 100_000 * target_law[0])
    due = target_law[0][:, None] * target_law
    pairs = np.bincount(tokens @ np.array([32, 1]), minlength=32 * 32)
    assert_fits(pairs, 100_000 * due.ravel())
    expected = 100_000 * count_law(law, target_law, draft_law, NUM_DRAFT)
    assert_fits(np.bincount(counts, minlength=NUM_DRAFT + 1), expected)


def test_whole_texts_of_seeds_draw_from_the_target() -> None:
    """5,000 seeds with the runtime's numbers: texts of three tokens over rounds of any depth.

    The depth of a round depends on what the last one drafted and threw away, which is allowed,
    since no number that a discarded draft has seen is used again.
    """
    p = mx.array([[0.34, 0.33, 0.33], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4]])
    q = mx.array([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.6, 0.3]])

    def depth(discarded: Ints) -> Ints:
        return np.where(discarded[:, 1] == 0, 1, np.where(discarded[:, 1] > 0, 0, 2))

    texts = whole_texts(p, q, 3, 5_000, depth)
    law = as_distribution(p)
    due = law[0][:, None, None] * law[:, :, None] * law[None]
    observed = np.bincount(texts @ np.array([9, 3, 1]), minlength=27)
    assert_fits(observed, 5_000 * due.ravel())


def edge_row(vocab_size: int, ids: list[int], seed: int) -> Floats:
    """Logits with mass on a few ids and next to none elsewhere."""
    logits = np.full(vocab_size, -20.0)
    logits[ids] = np.random.default_rng(seed).normal(size=len(ids))
    return logits


EDGES = [0, 1, 255, 256, 511, 24_576, 49_151]


@pytest.mark.parametrize("vocab_size", [49_152, pytest.param(248_320, marks=pytest.mark.slow)])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 4}])
def test_a_draw_from_a_large_vocabulary(vocab_size: int, params: dict[str, float]) -> None:
    """100,000 draws with the mass at the ends of the vocabulary and of its segments."""
    ids = [*EDGES, vocab_size - 1]
    settings = SamplingParams(temperature=1.0, **params)  # type: ignore[arg-type]
    logits = mx.array(edge_row(vocab_size, ids, 1)[None].astype(np.float32))
    probs = sampling.warp(logits, settings, History(())).probs
    numbers = uniform_pairs(np.random.default_rng(2), 100_000, 2)
    drawn = np.array(mx.vmap(sampling.draw, in_axes=(None, 0))(probs[0], numbers))
    due = as_distribution(probs)[0]
    assert_fits(np.bincount(drawn, minlength=vocab_size), 100_000 * due)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["rejection", "block"])
def test_a_round_over_a_large_vocabulary(law: str) -> None:
    """4,000 rounds of two draft tokens at V = 49,152: the first token, and the count kept."""
    num_lanes, chunk = 4_000, 100
    rows = np.stack([edge_row(49_152, EDGES, seed) for seed in (1, 2, 5)]).astype(np.float32)
    p = sampling.warp(
        mx.array(rows), SamplingParams(temperature=1.0, top_p=0.99), History((), mx.zeros(2))
    ).probs
    rows = np.stack([edge_row(49_152, EDGES, seed) for seed in (3, 4)]).astype(np.float32)
    q = sampling.warp(
        mx.array(rows), SamplingParams(temperature=1.0, top_k=6), History((), mx.zeros(1))
    ).probs
    generator, counts, first = np.random.default_rng(4), [], []
    for _ in range(num_lanes // chunk):
        numbers = uniform_pairs(generator, chunk, 2, 2)
        ids = mx.vmap(sampling.draw, in_axes=(None, 0))(q, numbers)
        uniforms = Uniforms(
            uniform_pairs(generator, chunk, 2), uniform_pairs(generator, chunk, 3, 2)
        )
        kept, emitted = verify_lanes(law, p, ids, q, uniforms, shared=True)
        counts.append(kept)
        first.append(emitted[:, 0])
    target, proposal = as_distribution(p), as_distribution(q)
    assert_fits(np.bincount(np.concatenate(first), minlength=49_152), num_lanes * target[0])
    due = num_lanes * _count_over_edges(law, target, proposal)
    assert_fits(np.bincount(np.concatenate(counts), minlength=3), due)


def _count_over_edges(law: str, p: Floats, q: Floats) -> Floats:
    """[3], how likely each count is, over all drafts that q [2, V] can give."""
    drafts = np.array([(a, b) for a in np.flatnonzero(q[0]) for b in np.flatnonzero(q[1])])
    weights = q[0][drafts[:, 0]] * q[1][drafts[:, 1]]
    p_rows, q_rows = (np.broadcast_to(x, (len(drafts), *x.shape)) for x in (p, q))
    accept, _ = acceptance_and_weights(law, p_rows, drafts.astype(np.int32), q_rows)
    return np.asarray(weights @ count_given(law, accept))


@pytest.mark.parametrize("ids", [[0, 1], list(range(32)), EDGES], ids=["2", "32", "edges"])
def test_real_noise_draws_from_the_target(ids: list[int]) -> None:
    """A race at 100,000 positions of one seed: each token wins as often as its probability says,
    and pairs of neighbouring positions as often as the product. Tokens of no probability never
    win, so those at the edges of a large vocabulary race among themselves."""
    probs = np.random.default_rng(8).dirichlet(np.full(len(ids), 0.7)).astype(np.float32)
    noise = coupled.exponentials(noise_keys(5, 0, 100_000), mx.array(ids))
    won = np.array(coupled.race(mx.broadcast_to(mx.array(probs), noise.shape), noise))
    due = as_distribution(mx.array(probs))
    assert_fits(np.bincount(won, minlength=len(ids)), 100_000 * due)
    pairs = won[0::2].astype(np.int64) * len(ids) + won[1::2]
    expected = 50_000 * np.outer(due, due).ravel()
    assert_fits(np.bincount(pairs, minlength=len(ids) ** 2), expected)


def test_noise_of_a_token_is_the_same_alone_and_among_all() -> None:
    """Elementwise: part of a vocabulary in any order, and one row of many, have the same bits."""
    keys, ids = noise_keys(7, 11, 3), mx.array([49_151, 5, 0, 256])
    among_all = coupled.exponentials(keys, mx.arange(49_152))
    assert mx.array_equal(coupled.exponentials(keys, ids), among_all[:, ids])
    assert mx.array_equal(coupled.exponentials(keys[1], ids), among_all[1, ids])
    probs = mx.zeros((3, 49_152))
    probs[:, ids] = mx.array([0.1, 0.2, 0.3, 0.4])
    winners = coupled.race(probs, among_all)
    few = coupled.race(mx.take(probs, ids, axis=1), among_all[:, ids])
    assert mx.array_equal(winners, ids[few])


def test_real_noise_is_exponential_and_unrelated_between_tokens() -> None:
    """Over positions, and over tokens of one position, up to both ends of a large vocabulary."""
    ids = mx.array([0, 1, 2, 255, 256, 24_576, 49_151, 248_319])
    noise = np.array(coupled.exponentials(noise_keys(6, 0, 20_000), ids)).astype(np.float64)
    for column in noise.T:
        assert stats.kstest(column, "expon").pvalue > FALSE_ALARM
    ranks = np.argsort(np.argsort(noise, axis=0), axis=0)
    related = np.corrcoef(ranks.T) - np.eye(len(ids))
    assert np.abs(related).max() < 6.5 / 20_000**0.5
    across = np.array(coupled.exponentials(noise_keys(6, 0, 2), mx.arange(49_152)))
    for row in across:
        assert stats.kstest(row, "expon").pvalue > FALSE_ALARM


def test_noise_is_the_same_on_every_platform() -> None:
    """Pinned words: a seed that a user wrote down keeps its meaning under the coupled law."""
    keys = mx.array([[1, 2], [0xFFFFFFFF, 0]], dtype=mx.uint32)
    words = coupled._hash(keys, mx.array([0, 1, 49_151], dtype=mx.uint32))
    assert np.array(words).tolist() == PINNED


def test_every_bit_of_key_and_token_reaches_every_bit_of_the_noise() -> None:
    """Turning one bit of either turns each bit of the word about every other time."""
    generator = np.random.default_rng(1)
    keys = generator.integers(0, 2**32, size=(4_000, 2), dtype=np.uint32)
    ids = generator.integers(0, 2**18, size=(4_000, 1), dtype=np.uint32)

    def bits(keys: NDArray[np.uint32], ids: NDArray[np.uint32]) -> Ints:
        words = np.array(coupled._hash(mx.array(keys), mx.array(ids)))[:, 0]
        return (words[:, None] >> np.arange(32)) & 1

    before = bits(keys, ids)
    for bit in range(32):
        mask = np.uint32(1 << bit)
        turned = [bits(keys ^ np.array([mask, 0], dtype=np.uint32), ids)]
        turned.append(bits(keys ^ np.array([0, mask], dtype=np.uint32), ids))
        if bit < 18:
            turned.append(bits(keys, ids ^ mask))
        for after in turned:
            assert np.abs((before ^ after).mean(axis=0) - 0.5).max() < 0.06


def test_noise_is_positive_and_finite_at_its_ends() -> None:
    """For the smallest, the largest and the words next to them."""
    words = np.array([0, 1, 2, 2**31, 2**32 - 257, 2**32 - 2, 2**32 - 1], dtype=np.uint32)
    with patch.object(coupled, "_hash", lambda keys, ids: mx.array(words)):
        noise = np.array(coupled.exponentials(mx.zeros(2), mx.zeros(7))).astype(np.float64)
    assert np.all(noise[1:] >= noise[:-1])
    assert noise[0] > 0
    assert np.isfinite(noise[-1])
    fractions = np.minimum(((words + 0.5) / 2**32).astype(np.float32), 1 - 2**-24)
    exact = -np.log1p(-fractions.astype(np.float64))
    np.testing.assert_allclose(noise, exact, rtol=3e-7)
