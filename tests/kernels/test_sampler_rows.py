"""Distributions by kernels: right to rounding, and the same tokens kept, whatever row is beside."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.kernels import sampler
from mtplx.kernels.source import Maker
from mtplx.sampling import History, SamplingParams, Warped, warp
from tests.warps.reference import expected_probs

Floats = NDArray[np.float32]
NAN, INF = float("nan"), float("inf")
CHUNK = 8192  # columns that a threadgroup takes
WIDTHS = (1, 5, 300, CHUNK, CHUNK + 1, 2 * CHUNK + 700)
LARGE = (49_152, 50_257, 151_936)
PLAIN = SamplingParams(temperature=0.8)
FILTERS = {
    "nothing": PLAIN,
    "greedy": replace(PLAIN, temperature=0.0, top_k=5),
    "top-k": replace(PLAIN, top_k=3),
    "top-p": replace(PLAIN, top_p=0.7),
    "min-p": replace(PLAIN, min_p=0.1),
    "top-k, top-p and min-p": replace(PLAIN, top_k=20, top_p=0.8, min_p=0.01),
    "typical-p within top-k": replace(PLAIN, top_k=8, typical_p=0.7),
    "XTC within top-p": replace(PLAIN, top_p=0.9, xtc_probability=0.5, xtc_threshold=0.05),
}


def portable(logits: mx.array, params: SamplingParams) -> Warped:
    """By MLX's operations, which on a GPU kernels would replace."""
    with mx.stream(mx.cpu):
        return warp(logits, params, history(len(logits)))


def history(num_rows: int) -> History:
    """Of which nothing is seen; XTC acts on every other row."""
    gates = mx.array([i % 2 * 0.9 for i in range(num_rows)])
    return History((), mx.zeros(num_rows - 1, dtype=mx.int32), gates)


def normal(num_rows: int, width: int) -> Floats:
    return np.random.default_rng(width).normal(scale=3, size=(num_rows, width)).astype(np.float32)


def halves(num_rows: int, width: int) -> Floats:
    """Multiples of 1/2, so that ties are everywhere, at every threshold, and over chunks."""
    return (np.round(2 * normal(num_rows, width)) / 2).astype(np.float32)


def in_double(logits: Floats, scale: float) -> NDArray[np.float64]:
    exponents = (logits - logits.max(axis=-1, keepdims=True)).astype(np.float64) * scale
    weights = np.exp2(exponents)
    probs: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return probs


def is_near(found: mx.array, logits: Floats, scale: float) -> bool:
    """To what rounding an exponent of up to 64 and its power makes of a probability."""
    expected = in_double(logits, scale)
    return bool(np.all(np.abs(np.array(found) - expected) <= 1e-5 * expected + 1e-37))


@pytest.mark.parametrize("width", WIDTHS)
def test_probabilities_are_right(width: int, maker: Maker) -> None:
    logits = normal(2, width)
    logits[:, : width // 3] = -INF
    probs, finite = sampler.softmax(mx.array(logits), 1.8, maker=maker)
    assert finite.tolist() == [True, True]
    assert is_near(probs, logits, 1.8)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_scores_are_read_in_their_own_type(dtype: mx.Dtype, maker: Maker) -> None:
    logits = mx.array(normal(2, 300)).astype(dtype)
    exact = logits.astype(mx.float32)
    assert is_near(sampler.softmax(logits, 1.8, maker=maker)[0], np.array(exact), 1.8)
    found, expected = (sampler.best(x, 40, maker=maker) for x in (logits, exact))
    assert all(mx.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("scale", [1e-37, 1e37])
def test_temperatures_at_the_ends_of_float32(scale: float, maker: Maker) -> None:
    """All tokens alike, and the best one alone."""
    logits = mx.array([[1.0, -INF, 3.0, 2.0]])
    probs = sampler.softmax(logits, scale, maker=maker)[0].tolist()
    third = pytest.approx(1 / 3)
    assert probs == ([[third, 0, third, third]] if scale < 1 else [[0, 0, 1, 0]])


@pytest.mark.parametrize("name", ["nothing", "greedy", "top-k", "top-p"])
@pytest.mark.parametrize("at", [0, CHUNK + 3])
def test_rows_that_are_no_logits_are_flagged(name: str, at: int, maker: Maker) -> None:
    """As by MLX's operations, wherever the number stands, and no other row is touched by it."""
    logits = normal(5, CHUNK + 5)
    for row, number in enumerate((NAN, INF, -NAN, -INF)):
        logits[row, at] = number
    logits[3] = -INF
    found = warp(mx.array(logits), FILTERS[name], history(5), maker=maker)
    expected = portable(mx.array(logits), FILTERS[name])
    assert found.finite.tolist() == expected.finite.tolist() == [False] * 4 + [True]
    assert np.isnan(np.array(found.probs)[:4]).any(axis=1).all()
    alone = warp(mx.array(logits[4:]), FILTERS[name], history(1), maker=maker)
    assert mx.array_equal(found.probs[4:], alone.probs)


def close(width: int) -> Floats:
    """Neighbours in float32, each once, in no order."""
    steps = np.random.default_rng(0).permutation(width)
    return (1 + steps[None] * 2**-23).astype(np.float32)


def has_the_best(logits: Floats, count: int, maker: Maker) -> bool:
    expected = np.sort(np.argsort(-logits, axis=-1, kind="stable")[:, :count], axis=-1)
    values, ids = sampler.best(mx.array(logits), count, maker=maker)
    right = np.take_along_axis(logits, expected, axis=-1)
    return np.array_equal(np.array(ids), expected) and np.array_equal(np.array(values), right)


@pytest.mark.parametrize("count", [1, 40, 300])
@pytest.mark.parametrize("width", [300, CHUNK + 1, 2 * CHUNK + 700])
def test_the_best_are_those_of_a_stable_sort(width: int, count: int, maker: Maker) -> None:
    """Equal ones by column, also across chunks and where the last chunk has fewer."""
    for logits in (normal(2, width), halves(2, width), np.zeros((1, width), np.float32)):
        assert has_the_best(logits, count, maker)


def test_every_bit_of_a_score_counts(maker: Maker) -> None:
    assert has_the_best(close(CHUNK + 700), 300, maker)


def test_the_best_are_found_where_most_are_forbidden(maker: Maker) -> None:
    """And minus zero is zero: the first of them is the best."""
    logits = np.full((1, CHUNK + 9), -INF, np.float32)
    logits[0, [700, 5, CHUNK + 2]] = [0.0, -0.0, -1.0]
    for count, expected in ((1, [5]), (2, [5, 700]), (4, [0, 5, 700, CHUNK + 2])):
        assert sampler.best(mx.array(logits), count, maker=maker)[1].tolist() == [expected]


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_gives_the_documented_distribution(name: str, maker: Maker) -> None:
    """Twenty rows equal the float64 reference, one that shares no code."""
    logits = np.random.default_rng(0).normal(scale=2, size=(20, 40))
    rows = mx.array(logits.astype(np.float32))
    expected = [expected_probs(row, FILTERS[name], (), i % 2 * 0.9) for i, row in enumerate(logits)]
    found = warp(rows, FILTERS[name], history(20), maker=maker)
    assert np.array(found.complete).all()
    np.testing.assert_allclose(np.array(found.probs), expected, atol=3e-6)


def same_kept(logits: Floats, params: SamplingParams, maker: Maker) -> bool:
    """Whether kernels keep what MLX's operations keep, with the same probabilities."""
    rows = mx.array(logits)
    found = warp(rows, params, history(len(logits)), maker=maker)
    expected = portable(rows, params)
    assert np.all(np.array(found.complete) >= np.array(expected.complete))
    # Where a row is not complete, it is the business of the full sort.
    sure = np.array(expected.complete)
    p, q = np.array(found.probs)[sure], np.array(expected.probs)[sure]
    same = np.array_equal(p > 0, q > 0) and np.all(np.abs(p - q) <= 1e-6 * q)
    return bool(sure.any() and same)


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "nothing"])
def test_the_kept_tokens_are_those_of_the_portable_code(name: str, maker: Maker) -> None:
    """Ties included, for rows from a few tokens to several chunks."""
    for width in (5, 300, CHUNK + 700):
        assert same_kept(halves(4, width), FILTERS[name], maker)
        assert same_kept(normal(4, width), FILTERS[name], maker)


@pytest.mark.parametrize("width", LARGE)
def test_the_widths_of_real_vocabularies(width: int, maker: Maker) -> None:
    logits = halves(2, width)
    assert is_near(sampler.softmax(mx.array(logits), 1.8, maker=maker)[0], logits, 1.8)
    assert same_kept(logits, replace(PLAIN, top_k=40, top_p=0.9), maker)
    peaked = np.where(logits > 6, 3 * logits, logits)
    assert same_kept(peaked, replace(PLAIN, top_p=0.9), maker)


def test_top_k_is_complete_on_a_row_of_ties(maker: Maker) -> None:
    """So no round has to be done again. MLX's operations rank too few tokens to know."""
    flat, params = mx.zeros((1, CHUNK + 9)), replace(PLAIN, top_k=40)
    found = warp(flat, params, history(1), maker=maker)
    assert (found.complete.item(), portable(flat, params).complete.item()) == (True, False)
    assert np.flatnonzero(np.array(found.probs)).tolist() == list(range(40))


@pytest.mark.parametrize("name", ["nothing", "top-k", "top-p"])
def test_rows_are_what_each_is_alone(name: str, maker: Maker) -> None:
    """Bit for bit, so that a verify pass keeps what plain decoding would."""
    logits = mx.array(normal(4, CHUNK + 700))
    together = warp(logits, FILTERS[name], history(4), maker=maker).probs
    for row in range(4):
        alone = warp(logits[row : row + 1], FILTERS[name], history(1), maker=maker).probs
        assert mx.array_equal(together[row : row + 1], alone)


def test_changed_logits_are_read_after_the_change(maker: Maker) -> None:
    logits = normal(1, 300)
    params = replace(PLAIN, top_k=5, logit_bias={7: 50.0})
    found = warp(mx.array(logits).astype(mx.float16), params, history(1), maker=maker)
    assert mx.argmax(found.probs).item() == 7
