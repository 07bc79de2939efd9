from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from mtplx import sampling
from mtplx.errors import SamplingError
from mtplx.params import Processor
from mtplx.sampling import History, SamplingParams

NAN, INF = float("nan"), float("inf")


def block(num_draft: int, vocab_size: int = 6) -> mx.array:
    return mx.random.normal((num_draft + 1, vocab_size), key=mx.random.key(num_draft))


def test_a_processor_sees_at_every_row_what_plain_decoding_would_show_it() -> None:
    """Prompt, emitted tokens and the draft before the row, and that row's logits alone."""
    calls: list[tuple[list[int], list[list[float]]]] = []

    def listen(token_ids: mx.array, logits: mx.array) -> mx.array:
        assert (token_ids.dtype, logits.dtype) == (mx.int32, mx.float32)
        calls.append((token_ids.tolist(), logits.tolist()))  # type: ignore[arg-type]
        return logits

    logits, params = block(3), SamplingParams(processors=(listen,))
    sampling.warp(logits, params, History([4, 1], mx.array([5, 5, 0])))
    seen = [[4, 1], [4, 1, 5], [4, 1, 5, 5], [4, 1, 5, 5, 0]]
    assert calls == [(ids, [row]) for ids, row in zip(seen, logits.tolist(), strict=True)]  # type: ignore[arg-type]


def test_processors_follow_bias_and_mask_and_precede_penalties() -> None:
    """Each gets what the one before it gave, and the penalties get what the last one gave."""
    given: list[list[float]] = []

    def first(token_ids: mx.array, logits: mx.array) -> mx.array:
        given.append(logits[0].tolist())  # type: ignore[arg-type]
        return mx.array([[1.0, 2.0, 3.0]])

    def second(token_ids: mx.array, logits: mx.array) -> mx.array:
        given.append(logits[0].tolist())  # type: ignore[arg-type]
        return logits * 2

    params = SamplingParams(
        temperature=1.0,
        processors=(first, second),
        logit_bias={0: 0.5},
        allowed_ids=(0, 1),
        presence_penalty=1.0,
    )
    warped = sampling.warp(mx.zeros((1, 3)), params, History([1]))
    assert given == [[0.5, 0, -INF], [1, 2, 3]]
    expected = np.exp([2.0, 4 - 1, 6])
    np.testing.assert_allclose(warped.probs[0], expected / expected.sum(), rtol=1e-5)


def test_a_processor_may_forbid_and_may_change_the_type() -> None:
    """-inf removes a token, and half precision is taken as it is."""

    def only_two(token_ids: mx.array, logits: mx.array) -> mx.array:
        return mx.where(mx.arange(6) == 2, logits, -mx.inf).astype(mx.float16)

    params = SamplingParams(temperature=0.5, processors=(only_two,))
    warped = sampling.warp(block(2), params, History([1], mx.array([2, 2])))
    assert warped.probs.tolist() == [[0, 0, 1, 0, 0, 0]] * 3
    assert warped.probs.dtype == mx.float32


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (lambda token_ids, logits: None, "gave NoneType"),
        (lambda token_ids, logits: logits[0], r"gave an array of shape \(6,\)"),
        (lambda token_ids, logits: np.array(logits), "gave ndarray"),
    ],
)
def test_what_is_not_logits_is_refused_by_the_processors_name(
    give: Callable[[mx.array, mx.array], object], told: str
) -> None:
    """The error names the function, what it gave and what it must give."""
    params = SamplingParams(processors=(give,))  # type: ignore[arg-type]  # the mistake in question
    with pytest.raises(SamplingError, match=rf"lambda.*{told}.*shape \(1, 6\)"):
        sampling.warp(block(0), params, History([1]))


def test_only_allowed_tokens_are_left() -> None:
    """All others have no probability at any temperature, and those allowed keep their ratios."""
    logits = block(1)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, allowed_ids=(4, 1, 1))
        probs = np.array(sampling.warp(logits, params, History([1], mx.array([0]))).probs)
        assert not probs[:, [0, 2, 3, 5]].any()
    ratio = np.exp(np.array(logits)[:, 4] - np.array(logits)[:, 1])
    np.testing.assert_allclose(probs[:, 4] / probs[:, 1], ratio, rtol=1e-5)


def test_an_allowed_token_outside_the_vocabulary_is_an_error() -> None:
    """The message names the token and where the vocabulary ends."""
    with pytest.raises(SamplingError, match=r"allowed_ids names token 6\b.*\b5\b"):
        sampling.warp(block(0), SamplingParams(allowed_ids=(1, 6)), History([1]))


def forbid_all(token_ids: mx.array, logits: mx.array) -> mx.array:
    return mx.full(logits.shape, -mx.inf)


def give_nan(token_ids: mx.array, logits: mx.array) -> mx.array:
    return logits * NAN


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("processor", [forbid_all, give_nan])
def test_a_request_that_leaves_nothing_is_told_from_a_broken_model(
    processor: Processor, temperature: float
) -> None:
    """The row is flagged; the fault is the request's only where the model's logits were fine."""
    params = SamplingParams(temperature=temperature, processors=(processor,))
    warped = sampling.warp(block(0), params, History([1]))
    assert warped.finite.item() is False
    with pytest.raises(SamplingError, match="at least one token"):
        sampling.check_left(warped, params)
    broken = sampling.warp(block(0) * NAN, params, History([1]))
    sampling.check_left(broken, params)


@pytest.mark.slow
def test_processors_made_for_mlx_lm_fit() -> None:
    """mlx-lm's repetition penalty, given as a processor, does what the field does."""
    from mlx_lm.sample_utils import make_logits_processors

    theirs = make_logits_processors(repetition_penalty=1.4, repetition_context_size=3)
    logits, history = block(4), History([2, 5, 1, 1], mx.array([0, 3, 3, 1]))
    ours = SamplingParams(temperature=1.0, repetition_penalty=1.4, penalty_window=3)
    expected = sampling.warp(logits, ours, history).probs
    params = SamplingParams(temperature=1.0, processors=tuple(theirs))
    np.testing.assert_allclose(sampling.warp(logits, params, history).probs, expected, rtol=1e-5)
