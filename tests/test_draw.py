import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.sampling import draw

LARGEST = 1 - 2**-24
EDGES = (0.0, 2**-24, 0.25, 0.5, 0.75, LARGEST)
"""The uniform numbers at which a running sum is most easily missed or overshot."""


def edge_pairs() -> mx.array:
    return mx.array([[a, b] for a in EDGES for b in EDGES], dtype=mx.float32)  # [36, 2]


def draw_all(probs: NDArray[np.float32], pairs: mx.array) -> NDArray[np.int32]:
    return np.array(mx.vmap(draw, in_axes=(None, 0))(mx.array(probs), pairs))


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000, 49_152])
def test_a_token_without_probability_is_never_drawn(vocab_size: int) -> None:
    """Even at the ends of the unit interval, and where the mass sits at the ends of segments."""
    rng = np.random.default_rng(vocab_size)
    rows = [np.eye(1, vocab_size, k)[0] for k in {0, vocab_size // 2, vocab_size - 1}]
    for share in (0.01, 0.5):
        sparse = rng.random(vocab_size) * (rng.random(vocab_size) < share)
        sparse[rng.integers(vocab_size)] = 1e-30
        rows += [sparse, sparse * 1e-14]  # down to float32's subnormal numbers
    for row in rows:
        probs = row.astype(np.float32)
        assert np.all(probs[draw_all(probs, edge_pairs())] > 0)


def test_every_token_can_be_drawn() -> None:
    """A grid of uniform numbers reaches every token of an even distribution, equally often."""
    pairs = mx.array([[a, (i + 0.5) / 512] for a in (0.25, 0.75) for i in range(512)])
    drawn = draw_all(np.full(512, 1 / 512, dtype=np.float32), pairs)
    assert np.array_equal(np.bincount(drawn, minlength=512), np.full(512, 2))


@pytest.mark.parametrize("vocab_size", [600, 49_152, 248_320])
def test_the_first_number_divides_the_mass_among_segments_exactly(vocab_size: int) -> None:
    """Segment k is drawn for u between the masses before and after it, to a few units of 2**-24."""
    probs = np.random.default_rng(1).exponential(size=vocab_size).astype(np.float32) ** 8
    pairs = mx.array([[(i + 0.5) / 4096, 0.5] for i in range(4096)], dtype=mx.float32)
    segments = draw_all(probs, pairs) // 256
    mass = np.add.reduceat(probs.astype(np.float64), np.arange(0, vocab_size, 256))
    after = np.cumsum(mass) / mass.sum()
    before = after - mass / mass.sum()
    u = np.array(pairs)[:, 0]
    assert np.all(u > before[segments] - 1e-6)
    assert np.all(u < after[segments] + 1e-6)


def test_the_second_number_divides_a_segment_exactly() -> None:
    """Within a segment a token is drawn for u between the masses before and after it."""
    probs = np.random.default_rng(1).exponential(size=256).astype(np.float32) ** 8
    pairs = mx.array([[0.5, (i + 0.5) / 4096] for i in range(4096)], dtype=mx.float32)
    drawn = draw_all(probs, pairs)
    after = np.cumsum(probs.astype(np.float64)) / probs.astype(np.float64).sum()
    u = np.array(pairs)[:, 1]
    assert np.all(u < after[drawn] + 1e-6)
    assert np.all(u > np.concatenate([[0], after])[drawn] - 1e-6)


def test_improbable_tokens_keep_their_share_beside_a_dominant_one() -> None:
    """248,000 tokens of 1e-9 each together get what they add up to, to one per cent."""
    probs = np.full(248_320, 1e-9, dtype=np.float32)
    probs[3] = 1
    pairs = mx.array([[1 - i * 2**-24, 0.5] for i in range(1, 8192)], dtype=mx.float32)
    drawn = draw_all(probs, pairs)
    expected = 2**24 * 248_064e-9 / (1 + 248_319e-9)  # all but the first segment
    assert np.sum(drawn >= 256) == pytest.approx(expected, rel=0.01)


def test_weights_need_not_sum_to_one() -> None:
    """Scaling a row by a power of two changes nothing."""
    probs = np.random.default_rng(0).random(1000).astype(np.float32)
    pairs = mx.array(np.random.default_rng(1).random((500, 2)).astype(np.float32))
    expected = draw_all(probs, pairs)
    for scale in (2.0**-60, 2.0**20):
        assert np.array_equal(draw_all(probs * np.float32(scale), pairs), expected)


def test_rows_are_drawn_independently() -> None:
    """A batch of rows of any shape gives what each row gives alone."""
    rng = np.random.default_rng(0)
    probs = mx.array(rng.random((2, 3, 700)).astype(np.float32))
    pairs = mx.array(rng.random((2, 3, 2)).astype(np.float32))
    together = draw(probs, pairs)
    assert together.shape == (2, 3)
    assert together.dtype == mx.int32
    for i, j in np.ndindex(2, 3):
        assert draw(probs[i, j], pairs[i, j]).item() == together[i, j].item()
