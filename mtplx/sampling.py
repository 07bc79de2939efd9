"""From logits to the distribution that a token is drawn from, and the draw itself.

The order of the warps is part of the contract, since another order is another distribution:

    logit bias, allowed tokens, the request's own processors,
    repetition, presence and frequency penalty, DRY,
    temperature,
    top-k, top-p, min-p, typical-p, XTC

all in float32, each on what the one before it gave. At temperature 0 the most probable token is
taken after the second line. Tokens are ranked by probability (typical-p: by closeness) and equal
ones by id, lowest first, so one row keeps what many rows keep.
"""

import math
from dataclasses import dataclass, replace

import mlx.core as mx

from mtplx.errors import SamplingError
from mtplx.kernels import sampler
from mtplx.kernels.source import Maker
from mtplx.params import SamplingParams as SamplingParams
from mtplx.warps.dry import without_repetition
from mtplx.warps.filters import Best, filtered, kernels_serve, num_best, softmax
from mtplx.warps.history import History as History
from mtplx.warps.penalties import penalised
from mtplx.warps.ranking import group_maxima
from mtplx.warps.scores import allowed, biased, processed
from mtplx.warps.sums import running_sums, split

_SEGMENT = 256  # columns among which the second number of a draw chooses


@dataclass(frozen=True, slots=True)
class Warped:
    """What `warp` gives. Everything is lazy and lives on the device.

    probs: [R, V] float32, rows that sum to 1.
    complete: [R] bool. False where a filter would have kept more than the candidates that were
        ranked; the row is then a distribution, but not the one asked for. Whoever needs the exact
        one asks `completed`; a drafter does not, since its q is whatever it draws from.
    finite: [R] bool. False where the logits hold NaN, +inf or nothing but -inf; the row then
        holds NaN and must not be drawn from.
    logits: [R, V], as they were given.
    exponents: [R, V] float32, what the filters began with.
    gates: as in `History`.
    """

    probs: mx.array
    complete: mx.array
    finite: mx.array
    logits: mx.array
    exponents: mx.array
    gates: mx.array | None = None


def warp(
    logits: mx.array, params: SamplingParams, history: History, *, maker: Maker | None = None
) -> Warped:
    """The distributions that plain decoding would draw from at each of these rows.

    logits: [R, V], any floating dtype. maker: who runs kernels, where it is not MLX on a Mac's
    GPU. Raises SamplingError if a field names a token that is not in the vocabulary, and for a
    processor that gives no logits.
    """
    given = logits.astype(mx.float32)
    scores = allowed(biased(given, params), params)
    scores = processed(scores, params, history)
    scores = without_repetition(penalised(scores, params, history), params, history)  # [R, V]
    peak = mx.max(group_maxima(scores), axis=-1, keepdims=True)  # [R, 1]
    peak = peak + (peak - peak)  # infinite becomes NaN, which spreads to the row
    finite = mx.isfinite(peak)[:, 0]
    maker = sampler.kernels_here(maker)
    # What kernels read: logits that nothing has changed, as they are, may be half as long.
    read = logits if scores is given else scores
    if not params.draws_randomly:
        if maker is not None:
            probs, finite = _greedy_by_kernels(read, maker)
            return Warped(probs, mx.ones_like(finite), finite, logits, scores)
        best = mx.argmax(scores, axis=-1, keepdims=True)
        probs = mx.put_along_axis(mx.zeros_like(scores), best, 1 + (peak - peak), axis=-1)
        return Warped(probs, mx.ones_like(finite), finite, logits, scores)
    # In range of float32 at both ends, so that 0 * scale and -inf * scale are numbers.
    scale = min(max(math.log2(math.e) / params.temperature, 1e-37), 1e37)
    exponents = (scores - peak) * scale
    if maker is not None and kernels_serve(params, scores.shape[-1]):
        probs, complete, finite = _by_kernels(read, scale, params, history.gates, maker)
        return Warped(probs, complete, finite, logits, exponents, history.gates)
    if not params.filters:
        return Warped(softmax(exponents), mx.ones_like(finite), finite, logits, exponents)
    probs, complete = filtered(exponents, params, history.gates, full_sort=False)
    return Warped(probs, complete, finite, logits, exponents, history.gates)


def _greedy_by_kernels(scores: mx.array, maker: Maker) -> tuple[mx.array, mx.array]:
    """`probs` and `finite`."""
    peak, ids = sampler.best(scores, 1, maker=maker)
    certain = 1 + (peak - peak)
    probs = sampler.spread(certain, ids, scores.shape[-1], maker=maker)
    return probs, mx.isfinite(peak)[:, 0]


def _by_kernels(
    scores: mx.array, scale: float, params: SamplingParams, gates: mx.array | None, maker: Maker
) -> tuple[mx.array, mx.array, mx.array]:
    """`probs`, `complete` and `finite` at a temperature above 0."""
    if not params.filters:
        probs, finite = sampler.softmax(scores, scale, maker=maker)
        return probs, mx.ones_like(finite), finite
    found, ids = sampler.best(scores, num_best(params, scores.shape[-1]), maker=maker)
    peak = mx.max(found, axis=-1, keepdims=True)
    peak = peak + (peak - peak)  # as above
    total = None
    if params.top_p < 1 and not params.top_k:
        total = sampler.total(scores, scale, maker=maker)
    best = Best((found - peak) * scale, ids, total, maker)
    probs, complete = filtered(scores, params, gates, full_sort=False, best=best)
    return probs, complete, mx.isfinite(peak)[:, 0]


def completed(warped: Warped, params: SamplingParams) -> Warped:
    """The same rows with every token ranked, so that all are complete."""
    probs, complete = filtered(warped.exponents, params, warped.gates, full_sort=True)
    return replace(warped, probs=probs, complete=complete)


def check_left(warped: Warped, params: SamplingParams) -> None:
    """Raises SamplingError where the model gave logits and the request leaves none of them.

    For rows that are not finite: it waits for them.
    """
    peaks = mx.max(warped.logits.astype(mx.float32), axis=-1)
    changed = params.logit_bias or params.allowed_ids is not None or params.processors
    if changed and mx.all(mx.isfinite(peaks)).item():
        raise SamplingError(
            "No token can be drawn after logit_bias, allowed_ids and processors: what they leave "
            "is -inf, or not a number. Let them leave at least one token."
        )


def draft_params(params: SamplingParams) -> SamplingParams:
    """The request for a drafter: without what looks at token ids or their history.

    Its logits may have columns of their own. What it leaves out costs acceptance only.
    """
    return replace(
        params,
        logit_bias={},
        allowed_ids=None,
        processors=(),
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        dry_multiplier=0.0,
    )


def draw(probs: mx.array, uniforms: mx.array, *, maker: Maker | None = None) -> mx.array:
    """Columns [...] int32, drawn in proportion to `probs` [..., S] by `uniforms` [..., 2].

    The first number chooses a segment of the columns and the second a column within it, so that
    tokens far below float32's resolution keep their probability. The rows need not sum to 1, but
    need some mass. A column of probability 0 is never drawn. maker: as for `warp`.
    """
    maker = sampler.kernels_here(maker)
    if maker is not None:
        rows = probs.reshape(-1, probs.shape[-1])
        return sampler.draw(rows, uniforms.reshape(-1, 2), maker=maker).reshape(probs.shape[:-1])
    return draw_by_operations(probs, uniforms)


def draw_by_operations(probs: mx.array, uniforms: mx.array) -> mx.array:
    """As `draw`, by MLX's operations wherever it runs."""
    segments = split(probs, _SEGMENT)  # [..., S / 256, 256]
    chosen = _first_past(mx.sum(segments, axis=-1), uniforms[..., :1])  # [..., 1]
    index = mx.broadcast_to(chosen[..., None], (*chosen.shape, segments.shape[-1]))
    members = mx.squeeze(mx.take_along_axis(segments, index, axis=-2), axis=-2)  # [..., 256]
    within = _first_past(members, uniforms[..., 1:])
    return mx.squeeze(chosen * _SEGMENT + within, axis=-1)


def _first_past(weights: mx.array, uniform: mx.array) -> mx.array:
    """The column [..., 1] int32 where the running sum first exceeds `uniform` times the whole."""
    running = running_sums(weights)
    target = uniform * running[..., -1:]
    reached = mx.where(weights > 0, running, -1.0)
    # Rounding can put the target on the whole sum. Then the last mass there is, is meant.
    last = reached == mx.max(reached, axis=-1, keepdims=True)
    past = mx.logical_or(reached > target, last)
    return mx.argmax(past, axis=-1, keepdims=True).astype(mx.int32)
