"""What a request says about single tokens: bias, allowed tokens, functions of its own."""

import math
from collections.abc import Callable, Iterable

import mlx.core as mx

from mtplx.errors import SamplingError
from mtplx.params import SamplingParams
from mtplx.warps.history import History


def biased(scores: mx.array, params: SamplingParams) -> mx.array:
    """Scores [R, V] with the bias added. Raises SamplingError for a token there is not."""
    if not params.logit_bias:
        return scores
    _check_ids("logit_bias", params.logit_bias, scores.shape[-1])
    ids = mx.array(list(params.logit_bias))
    values = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
    return scores.at[:, ids].add(values)


def allowed(scores: mx.array, params: SamplingParams) -> mx.array:
    """Scores [R, V], -inf but for allowed tokens. Raises SamplingError for a token there is not."""
    if params.allowed_ids is None:
        return scores
    _check_ids("allowed_ids", params.allowed_ids, scores.shape[-1])
    ids = mx.array(params.allowed_ids, dtype=mx.int32)
    ids = mx.broadcast_to(ids, (len(scores), len(params.allowed_ids)))
    nothing = mx.full(scores.shape, -mx.inf, dtype=scores.dtype)
    return mx.put_along_axis(nothing, ids, mx.take_along_axis(scores, ids, axis=-1), axis=-1)


def processed(scores: mx.array, params: SamplingParams, history: History) -> mx.array:
    """Scores [R, V] after the request's own functions, each row with the tokens before it.

    Reads the draft. Behind a drafted token that a function has forbidden, no function is asked: a
    grammar has no answer there, and every law refuses that token. Raises SamplingError where a
    function gives something else than logits.
    """
    if not params.processors:
        return scores
    draft = history.drafted().tolist()
    assert isinstance(draft, list)
    committed = list(history.token_ids)
    rows = []
    for row, ahead in enumerate(history.num_ahead(len(scores)).tolist()):
        logits = scores[row : row + 1]
        for processor in params.processors:
            token_ids = mx.array(committed + draft[:ahead], dtype=mx.int32)
            logits = _result(processor, token_ids, logits)
        rows.append(logits)
        if ahead < len(draft) and logits[0, draft[ahead]].item() == -math.inf:
            break
    return mx.concatenate([*rows, scores[len(rows) :]])


def _result(
    processor: Callable[[mx.array, mx.array], object], token_ids: mx.array, logits: mx.array
) -> mx.array:
    result = processor(token_ids, logits)
    if not isinstance(result, mx.array) or result.shape != logits.shape:
        what = type(result).__name__
        if isinstance(result, mx.array):
            what = f"an array of shape {result.shape}"
        name = getattr(processor, "__qualname__", type(processor).__qualname__)
        raise SamplingError(
            f"The logits processor {name} gave {what}, but must give an mlx array of shape "
            f"{logits.shape}, as it was given."
        )
    return result.astype(mx.float32)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    highest = max(ids)
    if highest >= vocab_size:
        raise SamplingError(
            f"{name} names token {highest}, but the last token is {vocab_size - 1}."
        )
