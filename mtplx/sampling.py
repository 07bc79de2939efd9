"""From logits to the distribution that a token is drawn from, and the draw itself.

The order of the warps is part of the contract, since another order is another distribution:

    logit bias, repetition, presence, frequency penalty, temperature, top-k, top-p, min-p

all in float32. The three filters rank tokens by probability and equal ones by id, lowest first, so
each keeps a prefix of one and the same ranking, and one row keeps what many rows keep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtplx.errors import SamplingError
from mtplx.params import SamplingParams as SamplingParams

_SEGMENT = 256  # columns among which the second number of a draw chooses
_BLOCK = 32  # terms that a running sum adds up before it starts anew
_NUM_GROUPED = 8  # tokens per group in the search for the most probable ones
_NUM_CANDIDATES = 1024  # most probable tokens that the filters look at before they sort all


@dataclass(frozen=True, slots=True)
class History:
    """The tokens that stand before the rows to be warped.

    token_ids: the committed tokens, the prompt and the pending token included.
    draft: [K] int32, drafted tokens after them. The last row sees all of it and each row before
        it one token less: the K + 1 rows of a verify pass see 0 to K of them, and the one row of
        a drafter sees all that it has drafted so far.
    """

    token_ids: Sequence[int]
    draft: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Warped:
    """What `warp` gives. Everything is lazy and lives on the device.

    probs: [R, V] float32, rows that sum to 1.
    complete: [R] bool. False where a filter would have kept more than the candidates that were
        searched; the row is then a distribution, but not the one asked for. Whoever needs the
        exact one warps again with `full_sort`; a drafter does not, since its q is whatever it
        draws from.
    finite: [R] bool. False where the logits hold NaN, +inf or nothing but -inf; the row then
        holds NaN and must not be drawn from.
    """

    probs: mx.array
    complete: mx.array
    finite: mx.array


def warp(
    logits: mx.array, params: SamplingParams, history: History, *, full_sort: bool = False
) -> Warped:
    """The distributions that plain decoding would draw from at each of these rows.

    logits: [R, V], any floating dtype. Raises SamplingError if logit_bias names a token that is
    not in the vocabulary.
    """
    scores = _biased(logits.astype(mx.float32), params)
    scores = _penalised(scores, params, history)  # [R, V]
    peak = mx.max(_group_maxima(scores), axis=-1, keepdims=True)  # [R, 1]
    peak = peak + (peak - peak)  # infinite becomes NaN, which spreads to the row
    finite = mx.isfinite(peak)[:, 0]
    if not params.draws_randomly:
        best = mx.argmax(scores, axis=-1, keepdims=True)
        probs = mx.put_along_axis(mx.zeros_like(scores), best, 1 + (peak - peak), axis=-1)
        return Warped(probs, mx.ones_like(finite), finite)
    # In range of float32 at both ends, so that 0 * scale and -inf * scale are numbers.
    scale = min(max(math.log2(math.e) / params.temperature, 1e-37), 1e37)
    exponents = (scores - peak) * scale
    if params.filters:
        return Warped(*_filtered(exponents, params, full_sort), finite)
    weights = _weights(exponents)
    return Warped(weights / _row_sums(weights), mx.ones_like(finite), finite)


def draw(probs: mx.array, uniforms: mx.array) -> mx.array:
    """Columns [...] int32, drawn in proportion to `probs` [..., S] by `uniforms` [..., 2].

    The first number chooses a segment of the columns and the second a column within it, so that
    tokens far below float32's resolution keep their probability. The rows need not sum to 1, but
    need some mass. A column of probability 0 is never drawn.
    """
    segments = _split(probs, _SEGMENT)  # [..., S / 256, 256]
    chosen = _first_past(mx.sum(segments, axis=-1), uniforms[..., :1])  # [..., 1]
    index = mx.broadcast_to(chosen[..., None], (*chosen.shape, segments.shape[-1]))
    members = mx.squeeze(mx.take_along_axis(segments, index, axis=-2), axis=-2)  # [..., 256]
    within = _first_past(members, uniforms[..., 1:])
    return mx.squeeze(chosen * _SEGMENT + within, axis=-1)


def _first_past(weights: mx.array, uniform: mx.array) -> mx.array:
    """The column [..., 1] int32 where the running sum first exceeds `uniform` times the whole."""
    running = _running_sums(weights)
    target = uniform * running[..., -1:]
    reached = mx.where(weights > 0, running, -1.0)
    # Rounding can put the target on the whole sum. Then the last mass there is, is meant.
    last = reached == mx.max(reached, axis=-1, keepdims=True)
    past = mx.logical_or(reached > target, last)
    return mx.argmax(past, axis=-1, keepdims=True).astype(mx.int32)


def _biased(scores: mx.array, params: SamplingParams) -> mx.array:
    if not params.logit_bias:
        return scores
    highest = max(params.logit_bias)
    if highest >= scores.shape[-1]:
        raise SamplingError(
            f"logit_bias names token {highest}, but the last token is {scores.shape[-1] - 1}."
        )
    ids = mx.array(list(params.logit_bias))
    values = mx.array(list(params.logit_bias.values()), dtype=mx.float32)
    return scores.at[:, ids].add(values)


def _penalised(scores: mx.array, params: SamplingParams, history: History) -> mx.array:
    if not params.penalises:
        return scores
    ids, counts = _seen(history, params.penalty_window, *scores.shape)  # [S], [R, S]
    ids = mx.broadcast_to(ids, counts.shape)
    before = mx.take_along_axis(scores, ids, axis=-1)
    factor = params.repetition_penalty
    after = mx.where(before > 0, before / factor, before * factor)
    after = after - params.presence_penalty - params.frequency_penalty * counts
    return mx.put_along_axis(scores, ids, mx.where(counts > 0, after, before), axis=-1)


def _seen(
    history: History, window: int | None, num_rows: int, vocab_size: int
) -> tuple[mx.array, mx.array]:
    """Ids [S] that rows have seen, and how often each row has seen each of them, [R, S] float32.

    Counted anew every time: there is no state that a rejected draft could leave behind. An id may
    stand in several columns, each with its whole count.
    """
    draft = mx.zeros(0, dtype=mx.int32) if history.draft is None else history.draft
    ahead = np.arange(len(draft) - num_rows + 1, len(draft) + 1)  # [R], draft tokens in sight
    assert ahead[0] >= 0, "more rows than the draft has tokens, and one"
    num_committed = len(history.token_ids)
    reach = num_committed + len(draft) if window is None else window
    starts = np.clip(num_committed - reach + ahead, 0, num_committed)  # of the committed part
    committed = np.asarray(history.token_ids[starts[0] :], dtype=np.int64)
    counts = np.bincount(committed)
    assert counts.size <= vocab_size, "a token outside the vocabulary"  # would write out of bounds
    unique = np.flatnonzero(counts)
    rows = np.tile(counts[unique].astype(np.float32), (num_rows, 1))
    for row, start in zip(rows, starts - starts[0], strict=True):
        np.subtract.at(row, np.searchsorted(unique, committed[:start]), 1)
    order = np.arange(len(draft))
    in_sight = (order < ahead[:, None]) & (order >= ahead[:, None] - reach)  # [R, K]

    ids = mx.concatenate([mx.array(unique, dtype=mx.int32), draft])  # [S]
    same = (draft[:, None] == ids).astype(mx.float32)  # [K, S]
    from_committed = mx.array(rows)  # [R, S - K]
    for_draft = mx.sum(from_committed[:, None] * same[:, : unique.size], axis=-1)  # [R, K]
    from_draft = mx.sum(mx.array(in_sight)[..., None] * same, axis=1)  # [R, S]
    return ids, mx.concatenate([from_committed, for_draft], axis=-1) + from_draft


def _filtered(
    exponents: mx.array, params: SamplingParams, full_sort: bool
) -> tuple[mx.array, mx.array]:
    """Probabilities [R, V] after top-k, top-p and min-p, and whether the candidates sufficed [R].

    Only the most probable tokens are sorted. They suffice if the last one that is kept is more
    probable than the least of them: then no other token, not even an equal one, could be kept.
    """
    num_rows, vocab_size = exponents.shape
    num_candidates = max(_NUM_CANDIDATES, 2 * params.top_k)
    if full_sort or num_candidates * _NUM_GROUPED >= vocab_size:
        weights = _weights(exponents)
        probs, _ = _kept(weights, _row_sums(weights), params)
        return probs, mx.ones(num_rows, dtype=mx.bool_)
    ids = _most_probable(exponents, num_candidates)
    weights = _weights(mx.take_along_axis(exponents, ids, axis=-1))
    probs, last = _kept(weights, _row_sums(_weights(exponents)), params)
    missed = last <= mx.min(weights, axis=-1, keepdims=True)
    return mx.put_along_axis(mx.zeros_like(exponents), ids, probs, axis=-1), ~missed[:, 0]


def _kept(weights: mx.array, total: mx.array, params: SamplingParams) -> tuple[mx.array, mx.array]:
    """The probabilities [R, C] of what the filters keep, and the least weight they keep [R, 1].

    weights: [R, C], at least the C largest of each row in the order of their ids; 1 at the peak.
    total: [R, 1], the sum of the whole row, for top-p without top-k.
    """
    ranked = -mx.sort(-weights, axis=-1)
    mass = _running_sums(ranked)
    num_kept = mx.sum((ranked > 0) & (ranked >= params.min_p), axis=-1, keepdims=True)
    top_k = min(params.top_k, weights.shape[-1])
    if top_k:
        num_kept = mx.minimum(num_kept, top_k)
    if params.top_p < 1:
        needed = params.top_p * (mass[:, top_k - 1 : top_k] if top_k else total)
        num_kept = mx.minimum(num_kept, 1 + mx.sum(mass < needed, axis=-1, keepdims=True))
    final = mx.maximum(num_kept, 1) - 1
    last = mx.take_along_axis(ranked, final, axis=-1)
    equal = weights == last
    num_equal_kept = num_kept - mx.sum(ranked > last, axis=-1, keepdims=True)
    keep = (weights > last) | (equal & (mx.cumsum(equal, axis=-1) <= num_equal_kept))
    return weights * keep / mx.take_along_axis(mass, final, axis=-1), last


def _most_probable(exponents: mx.array, num_tokens: int) -> mx.array:
    """Ids [R, num_tokens] of the largest exponents, ascending. Of equal ones, any may be left out.

    The largest elements stand in the groups with the largest maxima, so a cheap maximum over
    interleaved groups spares a partition of the whole vocabulary.
    """
    maxima = _group_maxima(exponents)  # [R, G]; group g holds the ids g, g + G, g + 2 G, ...
    num_rows, num_groups = maxima.shape
    groups = mx.argpartition(-maxima, num_tokens - 1, axis=-1)[:, None, :num_tokens]
    members = mx.arange(0, exponents.shape[-1], num_groups)[:, None]
    ids = (groups.astype(mx.int32) + members).reshape(num_rows, -1)
    values = mx.take_along_axis(exponents, ids, axis=-1)
    best = mx.argpartition(-values, num_tokens - 1, axis=-1)[:, :num_tokens]
    return mx.sort(mx.take_along_axis(ids, best, axis=-1), axis=-1)


def _group_maxima(x: mx.array) -> mx.array:
    num_rows, vocab_size = x.shape
    num_grouped = _NUM_GROUPED if vocab_size % _NUM_GROUPED == 0 else 1
    return mx.max(x.reshape(num_rows, num_grouped, -1), axis=1)


def _weights(exponents: mx.array) -> mx.array:
    # On a CPU MLX's power takes a third of the time of its exp (49,152 floats: 0.21 and 0.60 ms).
    return mx.power(2.0, exponents)


def _row_sums(x: mx.array) -> mx.array:
    """Sums [..., 1] of a few terms at a time, so that roundings do not pile up."""
    while x.shape[-1] > _BLOCK:
        x = _padded(x, _BLOCK)
        x = mx.sum(x.reshape(*x.shape[:-1], _BLOCK, -1), axis=-2)
    return mx.sum(x, axis=-1, keepdims=True)


def _running_sums(x: mx.array) -> mx.array:
    """Inclusive sums along the last axis: block by block, so that roundings do not pile up."""
    if x.shape[-1] <= _BLOCK:
        return mx.cumsum(x, axis=-1)
    within = mx.cumsum(_split(x, _BLOCK), axis=-1)  # [..., C / 32, 32]
    ends = _running_sums(within[..., -1])
    before = mx.pad(ends[..., :-1], [(0, 0)] * (x.ndim - 1) + [(1, 0)])
    return (within + before[..., None]).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def _split(x: mx.array, size: int) -> mx.array:
    """[..., S] as [..., S / size, size], padded with zeros where size does not divide S."""
    x = _padded(x, size)
    return x.reshape(*x.shape[:-1], -1, size)


def _padded(x: mx.array, size: int) -> mx.array:
    missing = -x.shape[-1] % size
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
