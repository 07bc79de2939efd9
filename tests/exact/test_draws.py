"""Chi-square of real draws through warp, draw and verify, at a false alarm rate of 1e-9."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from mtplx.speculation import Draft, Uniforms
from mtplx.verification import verify
from tests.exact.draws import (
    Floats,
    Ints,
    assert_fits,
    one_round,
    uniform_pairs,
    warped_table,
    whole_texts,
)

NUM_DRAFT = 3
TARGETS = {
    "plain": SamplingParams(temperature=1.0),
    "sharp": SamplingParams(temperature=0.6),
    "filtered": SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
}


def as_distribution(table: mx.array) -> Floats:
    rows = np.array(table).astype(np.float64)
    normalised: Floats = rows / rows.sum(axis=1, keepdims=True)
    return normalised


@pytest.mark.parametrize("target", TARGETS)
def test_a_round_draws_from_the_target(target: str) -> None:
    """100,000 rounds at V = 32: both of the first two tokens, and how many drafts are kept."""
    p = warped_table(32, 1, TARGETS[target])
    q = warped_table(32, 2, SamplingParams(temperature=0.9, top_p=0.95))
    counts, tokens = one_round(p, q, NUM_DRAFT, 100_000, seed=3)
    target_law, draft_law = as_distribution(p), as_distribution(q)

    assert_fits(np.bincount(tokens[:, 0], minlength=32), 100_000 * target_law[0])
    goes_on = tokens[counts >= 1, 0]
    pairs = tokens[counts >= 1, 0] * 32 + tokens[counts >= 1, 1]
    due = np.bincount(goes_on, minlength=32)[:, None] * target_law
    assert_fits(np.bincount(pairs, minlength=32 * 32), due.ravel())

    overlap = np.minimum(target_law, draft_law)  # [last, next], mass that is kept
    reached = [1.0]
    weights = np.eye(32)[0]
    for _ in range(NUM_DRAFT):
        weights = weights @ overlap
        reached.append(float(weights.sum()))
    lengths = -np.diff([*reached, 0.0])
    assert_fits(np.bincount(counts, minlength=NUM_DRAFT + 1), 100_000 * lengths)


def test_whole_texts_of_seeds_draw_from_the_target() -> None:
    """8,000 seeds with the runtime's numbers: texts of three tokens over rounds of any depth.

    The depth of a round depends on what the last one drafted and threw away, which is allowed,
    since no number that a discarded draft has seen is used again.
    """
    p = mx.array([[0.34, 0.33, 0.33], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4]])
    q = mx.array([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.6, 0.3]])

    def depth(discarded: Ints) -> Ints:
        return np.where(discarded[:, 1] == 0, 1, np.where(discarded[:, 1] > 0, 0, 2))

    texts = whole_texts(p, q, 3, 8_000, depth)
    law = as_distribution(p)
    due = law[0][:, None, None] * law[:, :, None] * law[None]
    observed = np.bincount(texts @ np.array([9, 3, 1]), minlength=27)
    assert_fits(observed, 8_000 * due.ravel())


def edge_row(vocab_size: int, ids: list[int], seed: int) -> Floats:
    """Logits with mass on a few ids and next to none elsewhere."""
    logits = np.full(vocab_size, -20.0)
    logits[ids] = np.random.default_rng(seed).normal(size=len(ids))
    return logits


EDGES = [0, 1, 255, 256, 511, 24_576, 49_151]


@pytest.mark.parametrize("vocab_size", [49_152, 248_320])
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
@pytest.mark.parametrize("one_hot", [False, True])
def test_a_round_over_a_large_vocabulary(one_hot: bool) -> None:
    """20,000 rounds of one draft token at V = 49,152: the token emitted and the share kept."""
    history = History((), mx.zeros(1, dtype=mx.int32))
    rows = np.stack([edge_row(49_152, EDGES, 1), edge_row(49_152, EDGES, 2)])
    p = sampling.warp(mx.array(rows.astype(np.float32)), SamplingParams(top_p=0.99), history).probs
    q_logits = mx.array(edge_row(49_152, EDGES, 3)[None].astype(np.float32))
    q = sampling.warp(q_logits, SamplingParams(temperature=1.0), History(())).probs
    generator = np.random.default_rng(4)
    drafts = mx.vmap(sampling.draw, in_axes=(None, 0))(q[0], uniform_pairs(generator, 20_000, 2))
    if one_hot:
        drafts = mx.full(20_000, EDGES[2], dtype=mx.int32)
    accept, choose = uniform_pairs(generator, 20_000, 1), uniform_pairs(generator, 20_000, 2, 2)
    emitted, kept = [], 0
    for i in range(20_000):
        draft = Draft(drafts[i : i + 1], None if one_hot else q)
        acceptance = verify(p, draft, Uniforms(accept[i], choose[i]))
        emitted.append(int(np.array(acceptance.token_ids)[0]))
        kept += int(np.array(acceptance.num_accepted))
    target, proposal = as_distribution(p)[0], as_distribution(q)[0]
    assert_fits(np.bincount(emitted, minlength=49_152), 20_000 * target)
    share = target[EDGES[2]] if one_hot else np.minimum(target, proposal).sum()
    assert_fits(np.array([kept, 20_000 - kept]), 20_000 * np.array([share, 1 - share]))
