from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtplx import sampling
from mtplx.errors import SamplingError
from mtplx.sampling import History, SamplingParams
from tests.warps.reference import expected_probs, is_clear_cut

Floats = NDArray[np.float64]

NAN, INF = float("nan"), float("inf")
NO_HISTORY = History(())
VOCAB_SIZES = (2, 3, 8, 40, 257)

params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.2, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 3, 20, 10**6]),
    top_p=st.sampled_from([1.0, 0.99, 0.8, 0.33, 1e-6]),
    min_p=st.sampled_from([0, 0, 0.02, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.9, 0.4]),
    xtc_probability=st.sampled_from([0, 0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.1, 0.03, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0, 0, 0.4, -0.6]),
    frequency_penalty=st.sampled_from([0, 0, 0.3]),
    penalty_window=st.sampled_from([None, 1, 2, 5]),
    dry_multiplier=st.sampled_from([0, 0, 0.8]),
    dry_allowed_length=st.sampled_from([1, 2]),
    dry_window=st.sampled_from([None, 1, 4, 7]),
    dry_breaker_ids=st.sampled_from([(), (0,)]),
    allowed_ids=st.sampled_from([None, None, (1, 0)]),
    logit_bias=st.sampled_from([{}, {0: 1.5}, {1: -INF, 0: -2.0}]),
)


@dataclass(frozen=True, slots=True)
class Block:
    """Logits [K + 1, V] full of ties, the tokens before them, a draft [K] and gates [K + 1]."""

    logits: Floats
    history: list[int]
    draft: list[int]
    gates: list[float]

    def seen(self, row: int) -> list[int]:
        return self.history + self.draft[:row]

    def is_clear_cut(self, params: SamplingParams) -> bool:
        rows = enumerate(self.logits)
        return all(is_clear_cut(row, params, self.seen(i)) for i, row in rows)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    vocab_size = draw(st.sampled_from(VOCAB_SIZES))
    num_draft = draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = rng.integers(-20, 20, size=(num_draft + 1, vocab_size)) / 4
    few = min(vocab_size, draw(st.sampled_from([2, 3, 257])))  # so that passages repeat
    history = rng.integers(0, few, size=draw(st.integers(0, 12))).tolist()
    draft = rng.integers(0, few, size=num_draft).tolist()
    return Block(logits, history, draft, (rng.integers(0, 8, num_draft + 1) / 8).tolist())


def warped(logits: Floats, params: SamplingParams, history: History = NO_HISTORY) -> Floats:
    """The probabilities, checked to be all there."""
    result = sampling.warp(mx.array(logits.astype(np.float32)), params, history)
    assert np.all(np.array(result.finite))
    assert np.all(np.array(result.complete))
    return np.array(result.probs).astype(np.float64)


def after(history: list[int], draft: list[int], gates: Sequence[float] = ()) -> History:
    return History(
        history, mx.array(draft, dtype=mx.int32), mx.array(list(gates)) if gates else None
    )


ONE_WARP_EACH = {
    "typical_p": SamplingParams(temperature=1.0, typical_p=0.6),
    "typical_p within top_k": SamplingParams(temperature=1.0, top_k=5, typical_p=0.6),
    "xtc": SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.08),
    "xtc after top_k": SamplingParams(
        temperature=1.0, top_k=4, xtc_probability=0.5, xtc_threshold=0.2
    ),
    "dry": SamplingParams(temperature=1.0, dry_multiplier=0.8, dry_allowed_length=1),
    "dry in a window": SamplingParams(
        temperature=1.0, dry_multiplier=0.8, dry_allowed_length=1, dry_window=4
    ),
    "allowed_ids": SamplingParams(temperature=1.0, allowed_ids=(1, 4, 5, 9)),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.0, top_k=3),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "min_p": SamplingParams(temperature=1.0, min_p=0.2),
    "top_p after temperature": SamplingParams(temperature=2.0, top_p=0.7),
    "top_p within top_k": SamplingParams(temperature=2.0, top_k=4, top_p=0.7),
    "logit_bias": SamplingParams(temperature=1.0, logit_bias={0: 2.0, 5: -3.0}),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.7),
    "presence": SamplingParams(temperature=1.0, presence_penalty=0.8),
    "frequency": SamplingParams(temperature=1.0, frequency_penalty=0.5),
    "filter after penalty": SamplingParams(temperature=1.0, frequency_penalty=1.0, top_k=2),
}


@pytest.mark.parametrize("name", ONE_WARP_EACH)
def test_every_warp_alone_does_what_is_documented(name: str) -> None:
    """Twenty rows of twelve tokens equal the float64 reference, row by row."""
    params = ONE_WARP_EACH[name]
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(20, 12))
    history, draft = [1, 5, 5, 2], rng.integers(0, 12, size=19).tolist()
    gates = (rng.integers(0, 8, size=20) / 8).tolist()
    expected = [
        expected_probs(logits[i], params, history + draft[:i], gate) for i, gate in enumerate(gates)
    ]
    found = warped(logits, params, after(history, draft, gates))
    np.testing.assert_allclose(found, expected, atol=3e-6)


@settings(max_examples=150, deadline=None)
@given(blocks(), params_of_any_kind)
def test_every_row_is_the_documented_distribution(block: Block, params: SamplingParams) -> None:
    """Each row equals the float64 reference of all warps after its own history."""
    assume(block.is_clear_cut(params))
    expected = [
        expected_probs(row, params, block.seen(i), gate)
        for i, (row, gate) in enumerate(zip(block.logits, block.gates, strict=True))
    ]
    found = warped(block.logits, params, after(block.history, block.draft, block.gates))
    np.testing.assert_allclose(found, expected, atol=3e-6)


@settings(max_examples=150, deadline=None)
@given(blocks(), params_of_any_kind)
def test_every_row_is_a_distribution(block: Block, params: SamplingParams) -> None:
    """No combination of warps leaves a row empty, and each sums to 1 in float32."""
    probs = warped(block.logits, params, after(block.history, block.draft, block.gates))
    assert np.all(probs >= 0)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    if params.top_k:
        assert np.all((probs > 0).sum(axis=1) <= params.top_k)


@settings(max_examples=100, deadline=None)
@given(blocks(), params_of_any_kind)
def test_a_row_alone_is_bit_for_bit_the_row_of_a_block(
    block: Block, params: SamplingParams
) -> None:
    """A row of a verify pass is what plain decoding would draw from at that position."""
    together = warped(block.logits, params, after(block.history, block.draft, block.gates))
    for i, (row, gate) in enumerate(zip(block.logits, block.gates, strict=True)):
        as_committed = warped(row[None], params, after(block.seen(i), [], [gate]))
        as_drafted = warped(row[None], params, after(block.history, block.draft[:i], [gate]))
        assert np.array_equal(as_committed[0], together[i])
        assert np.array_equal(as_drafted[0], together[i])


def test_a_flat_row_says_that_it_needs_a_full_sort() -> None:
    """Where top-p keeps more than the candidates, the row is flagged, and a full sort is exact."""
    logits = mx.zeros((1, 49_152))
    params = SamplingParams(top_p=0.5)
    quick = sampling.warp(logits, params, NO_HISTORY)
    assert quick.complete.item() is False
    assert mx.sum(quick.probs).item() == pytest.approx(1, abs=1e-4)
    full = np.array(sampling.completed(quick, params).probs)[0]
    assert np.flatnonzero(full).tolist() == list(range(49_152 // 2))


@pytest.mark.parametrize(
    ("params", "kept"),
    [({"temperature": 0}, 1), ({"top_k": 3}, 3), ({"top_p": 0.5}, 4), ({"min_p": 1.0}, 8)],
)
def test_of_equal_tokens_the_lowest_ids_are_kept(params: dict[str, float], kept: int) -> None:
    """A tie is broken by id, whether it is at the peak or at the edge of a filter."""
    probs = warped(np.zeros((1, 8)), SamplingParams(**params))  # type: ignore[arg-type]
    assert np.flatnonzero(probs[0]).tolist() == list(range(kept))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e9])
def test_extreme_temperatures_are_still_distributions(temperature: float) -> None:
    """The limits are the most probable tokens and the even distribution."""
    probs = warped(np.array([[3.0, -2.0, 3.0, -INF]]), SamplingParams(temperature=temperature))
    few = [0.5, 0, 0.5, 0]
    np.testing.assert_allclose(probs[0], few if temperature < 1 else [1 / 3] * 3 + [0], atol=1e-6)


def test_rows_sum_to_one_for_large_vocabularies() -> None:
    """Float32 sums stay accurate over 248,320 tokens, flat or peaked."""
    for scale in (0.0, 1.0, 5.0):
        logits = np.random.default_rng(0).normal(scale=scale, size=(1, 248_320))
        assert warped(logits, SamplingParams()).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.9}])
@pytest.mark.parametrize("wrong", [[NAN, 0, 1], [INF, 0, -INF], [-INF, -INF, -INF]])
def test_rows_that_are_no_logits_are_flagged(wrong: list[float], params: dict[str, float]) -> None:
    """NaN, +inf or nothing but -inf is reported for its row alone and ends in NaN, not in text."""
    logits = np.array([[0.0, 1, 2], wrong, [2.0, -INF, 1]], dtype=np.float32)
    history = History((), mx.zeros(2, dtype=mx.int32))
    for width in (3, 20_000):
        padded = np.full((3, width), -INF, dtype=np.float32)
        padded[:, -3:] = logits
        result = sampling.warp(mx.array(padded), SamplingParams(**params), history)  # type: ignore[arg-type]
        assert result.finite.tolist() == [True, False, True]
        assert result.complete.tolist() == [True, True, True]
        assert np.isnan(np.array(result.probs).sum(axis=1)).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_logits_are_warped_in_float32(dtype: mx.Dtype) -> None:
    """The probabilities are those of the same logits given in float32."""
    logits = mx.random.normal((2, 300), key=mx.random.key(1)).astype(dtype)
    history = History((), mx.zeros(1, dtype=mx.int32))
    params = SamplingParams(top_p=0.9)
    result = sampling.warp(logits, params, history)
    assert result.probs.dtype == mx.float32
    expected = sampling.warp(logits.astype(mx.float32), params, history)
    assert mx.array_equal(result.probs, expected.probs)


def test_a_biased_token_outside_the_vocabulary_is_an_error() -> None:
    """The message names the token and where the vocabulary ends."""
    with pytest.raises(SamplingError, match=r"token 8\b.*\b7\b"):
        sampling.warp(mx.zeros((1, 8)), SamplingParams(logit_bias={8: 1.0}), NO_HISTORY)


def test_a_forbidden_token_has_no_probability() -> None:
    """A bias of -inf removes a token, even the most probable one at temperature 0."""
    for temperature in (0, 0.7):
        params = SamplingParams(temperature=temperature, logit_bias={2: -INF})
        assert warped(np.array([[0.0, 1, 5]]), params)[0, 2] == 0


@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 9])
def test_the_penalty_window_slides_over_the_draft(window: int | None) -> None:
    """Row i is penalised for the last tokens of the history and its first i draft tokens."""
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25, penalty_window=window)
    history, draft = [0, 1, 1, 2], [3, 1, 3]
    logits = np.zeros((4, 5))
    expected = [expected_probs(row, params, history + draft[:i]) for i, row in enumerate(logits)]
    np.testing.assert_allclose(warped(logits, params, after(history, draft)), expected, atol=1e-6)


def test_a_token_outside_the_vocabulary_is_not_written_to() -> None:
    """A history that does not fit the logits stops before it can corrupt memory."""
    with pytest.raises(AssertionError, match="vocabulary"):
        sampling.warp(mx.zeros((1, 8)), SamplingParams(presence_penalty=1.0), History([8]))


def test_neutral_penalties_never_look_at_the_history() -> None:
    """A long history costs nothing while no penalty is set."""

    class Unread(tuple[int, ...]):
        def __getitem__(self, _: object) -> int:  # type: ignore[override]
            raise AssertionError("the history was read")

    sampling.warp(mx.zeros((1, 8)), SamplingParams(), History(Unread((1, 2))))
