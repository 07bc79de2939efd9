"""Whole texts have the target's distribution, to the last bits of float64."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx import sampling
from mtplx.sampling import SamplingParams
from tests.exact import scenes
from tests.exact.enumeration import (
    Floats,
    Scene,
    accepted_histogram,
    drafted_law,
    expected_accepted,
    plain_law,
    step_positions,
    total_variation,
)

TOLERANCE = 1e-12
SIZES = [(2, 4, 5), (3, 3, 4), (4, 2, 3), (4, 4, 2)]
"""(vocabulary, draft tokens per round, tokens of a text)"""

FAMILIES = [scenes.sampled, scenes.sparse, scenes.one_hot, scenes.shortlist, scenes.stopping]
WARPS = {
    "temperature": SamplingParams(temperature=0.6),
    "greedy": SamplingParams(temperature=0),
    "filters": SamplingParams(temperature=1.3, top_k=3, top_p=0.8, min_p=0.1),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.5, penalty_window=3),
    "counts": SamplingParams(temperature=1.0, presence_penalty=0.4, frequency_penalty=0.7),
    "everything": SamplingParams(
        temperature=0.9, top_p=0.95, frequency_penalty=0.5, penalty_window=2, logit_bias={1: 0.5}
    ),
}


def assert_exact(scene: Scene) -> None:
    """The joint law of the texts is the target's, and as many tokens are accepted as can be."""
    plain, drafted = plain_law(scene), drafted_law(scene)
    assert sum(plain.values()) == pytest.approx(1, abs=TOLERANCE)
    assert total_variation(plain, drafted) < TOLERANCE
    histogram = accepted_histogram(scene)
    mean = float(histogram @ np.arange(len(histogram)))
    assert mean == pytest.approx(expected_accepted(scene), abs=TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_targets_distribution(
    family: scenes.Family, size: tuple[int, int, int]
) -> None:
    """Total variation is below 1e-12, and the accepted count has its closed form."""
    assert_exact(family(*size, seed=sum(size)))


@pytest.mark.parametrize("warp", WARPS)
def test_warped_texts_have_the_targets_distribution(warp: str) -> None:
    """The same with the rows of a block warped at once, each after its own history."""
    assert_exact(scenes.warped(WARPS[warp], 3, 2, 4, seed=3))


@pytest.mark.parametrize("vocab_size", [5, 600])
def test_a_draw_has_the_distribution_it_is_given(vocab_size: int) -> None:
    """Both levels of the draw step exactly where the running sums of the probabilities do."""
    probs = np.random.default_rng(0).dirichlet(np.full(vocab_size, 0.3))
    probs[np.random.default_rng(1).random(vocab_size) < 0.4] = 0
    probs /= probs.sum()
    segments = np.arange(vocab_size) // sampling._SEGMENT
    mass = np.bincount(segments, weights=probs)

    def drawn(first: Floats, second: Floats) -> Floats:
        with mx.stream(mx.cpu):
            pairs = mx.array(np.stack([first, second], axis=-1), dtype=mx.float64)
            column = mx.vmap(sampling.draw, in_axes=(None, 0))
            return np.array(column(mx.array(probs, dtype=mx.float64), pairs))

    half = np.full(len(mass), 0.5)
    ends = step_positions(
        lambda u: drawn(u, half) // sampling._SEGMENT <= np.arange(len(mass)), len(mass)
    )
    assert np.abs(ends - np.cumsum(mass)).max() < TOLERANCE
    inside = (np.concatenate([[0], ends])[segments] + ends[segments]) / 2
    within = step_positions(lambda u: drawn(inside, u) <= np.arange(vocab_size), vocab_size)
    before = np.cumsum(mass)[segments] - mass[segments]
    assert np.abs(before + within * mass[segments] - np.cumsum(probs)).max() < TOLERANCE
