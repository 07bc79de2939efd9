"""Log-probabilities of what was emitted: the target's, never a draft's or a residual's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtplx.params import SamplingParams
from mtplx.sampling import Warped
from mtplx.warps.ranking import at_least, best_columns, group_maxima
from mtplx.warps.sums import row_sums


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token of a text and how probable it was in its place, as natural logarithms.

    top: the most probable (token id, log-probability) there, best first and equal ones by id;
        fewer than were asked for where fewer were possible. It need not hold the token itself.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def width(params: SamplingParams, vocab_size: int) -> int:
    """How many numbers `packed_logprobs` gives for a row; 0 where it is not asked."""
    return 0 if params.logprobs is None else 1 + 2 * min(params.logprobs, vocab_size)


def packed_logprobs(warped: Warped, token_ids: mx.array, params: SamplingParams) -> mx.array:
    """[R * width] int32 for `unpacked_logprobs`: for each row of `warped` that of its token, then
    the most probable tokens and theirs.

    token_ids: [R] int32. params.logprobs must not be None. Lazy.
    """
    assert params.logprobs is not None, "nobody asked"
    if params.logprobs_of == "model":
        scores = warped.logits.astype(mx.float32)
        total = _log_sums(scores)
    else:
        scores, total = mx.log(warped.probs), mx.zeros((len(token_ids), 1))
    own = mx.take_along_axis(scores, token_ids[:, None], axis=-1)
    parts = [_bits(own - total)]
    if params.logprobs:
        best = _best(scores, min(params.logprobs, scores.shape[-1]))
        parts += [best, _bits(mx.take_along_axis(scores, best, axis=-1) - total)]
    return mx.concatenate(parts, axis=-1).reshape(-1)


def unpacked_logprobs(
    numbers: Sequence[int], num_rows: int, token_ids: Sequence[int]
) -> tuple[TokenLogprobs, ...]:
    """The records of the tokens that the first rows had.

    numbers: what `packed_logprobs` gave for `num_rows` rows; none where it was not asked.
    """
    if not numbers:
        return ()
    rows = np.array(numbers, dtype=np.int32).reshape(num_rows, -1)
    num_top = rows.shape[1] // 2
    values = np.delete(rows, np.s_[1 : num_top + 1], axis=1).view(np.float32).astype(float)
    best = rows[:, 1 : num_top + 1]
    return tuple(
        TokenLogprobs(token_id, float(value[0]), _top(ids.tolist(), value[1:].tolist()))
        for token_id, ids, value in zip(token_ids, best, values, strict=False)
    )


def _top(ids: list[int], values: list[float]) -> tuple[tuple[int, float], ...]:
    possible = [pair for pair in zip(ids, values, strict=True) if pair[1] > -math.inf]
    return tuple(sorted(possible, key=lambda pair: (-pair[1], pair[0])))


def _best(scores: mx.array, num_tokens: int) -> mx.array:
    """Ids [R, num_tokens] of the highest scores, and of equal ones the lowest ids, in any order."""
    found = best_columns(scores, num_tokens)
    least = mx.min(mx.take_along_axis(scores, found, axis=-1), axis=-1, keepdims=True)
    kept = at_least(scores, least, mx.array(num_tokens))
    return best_columns(mx.where(kept, scores, -mx.inf), num_tokens)


def _log_sums(scores: mx.array) -> mx.array:
    """log of the sum [R, 1] of exp: quicker than MLX's own, whose roundings pile up on a CPU."""
    peak = mx.max(group_maxima(scores), axis=-1, keepdims=True)
    return peak + mx.log(row_sums(mx.power(2.0, (scores - peak) * math.log2(math.e))))


def _bits(x: mx.array) -> mx.array:
    return mx.view(x, mx.int32)
