"""Filters: which tokens are left to draw from.

In this order, each on what the one before it left: top-k, top-p, min-p, typical-p, XTC. They rank
tokens, and equal ones by id, lowest first; so one row keeps what many rows keep. Only the best
candidates are ranked, and a row says so where they were not enough.
"""

from dataclasses import dataclass

import mlx.core as mx

from mtplx.kernels import sampler
from mtplx.kernels.source import Maker
from mtplx.params import SamplingParams
from mtplx.warps.ranking import at_least, best_columns, pays
from mtplx.warps.sums import ordered_sums, row_sums, running_sums
from mtplx.warps.typical import closeness, expected, typical
from mtplx.warps.xtc import without_top_choices

_NUM_CANDIDATES = 1024  # best tokens that are ranked before all are

_Left = tuple[mx.array, mx.array | None, mx.array]
"""Probabilities [R, C], the ids [R, C] of the columns or None for all, whether C sufficed [R]."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best of each row, found by kernels: exactly, equal ones by id.

    exponents: [R, C], as `filtered` takes them. ids: [R, C], their columns, ascending.
    total: [R, 1], the sum of the whole row, where a filter asks for it.
    """

    exponents: mx.array
    ids: mx.array
    total: mx.array | None
    maker: Maker


def filtered(
    exponents: mx.array,
    params: SamplingParams,
    gates: mx.array | None,
    *,
    full_sort: bool,
    best: Best | None = None,
) -> tuple[mx.array, mx.array]:
    """Probabilities [R, V] of what the filters leave, and whether the candidates sufficed [R].

    exponents: [R, V], base-2 logarithms of weights relative to the row's largest.
    gates: [R], as in `History`; needed for XTC.
    full_sort: rank every token, which always suffices.
    best: candidates, of which there are `num_best`; then only the shape of the rows is looked at.
    """
    wanted = max(_NUM_CANDIDATES, 2 * params.top_k)
    num_ranked = None if full_sort or not pays(wanted, exponents.shape[-1]) else wanted
    if best is not None:
        probs, ids, sufficed = _of_best(best, params, exponents.shape[-1])
    elif params.ranks_by_probability:
        probs, ids, sufficed = _probable(exponents, params, num_ranked)
    elif params.typical_p < 1:
        probs, ids, sufficed = _typical(exponents, params.typical_p, num_ranked)
    else:
        probs, ids, sufficed = softmax(exponents), None, mx.ones(len(exponents), dtype=mx.bool_)
    if params.excludes_top_choices:
        assert gates is not None, "XTC needs a number for each row"
        probs = without_top_choices(probs, gates, params)
    if best is not None:
        probs = sampler.spread(probs, best.ids, exponents.shape[-1], maker=best.maker)
    elif ids is not None:
        probs = mx.put_along_axis(mx.zeros_like(exponents), ids, probs, axis=-1)
    if params.excludes_top_choices:
        probs = probs / row_sums(probs)
    return probs, sufficed


def num_best(params: SamplingParams, vocab_size: int) -> int:
    """How many candidates kernels are to find, if they rank tokens."""
    return min(params.top_k or _NUM_CANDIDATES, vocab_size)


def kernels_serve(params: SamplingParams, vocab_size: int) -> bool:
    """Whether kernels can do what these filters begin with, or what is done without any."""
    if params.ranks_by_probability:
        return num_best(params, vocab_size) <= sampler.MOST_BEST
    return not params.filters


def softmax(exponents: mx.array) -> mx.array:
    """Probabilities [R, V] in proportion to powers of 2."""
    weights = _weights(exponents)
    return weights / row_sums(weights)


def _probable(exponents: mx.array, params: SamplingParams, num_ranked: int | None) -> _Left:
    """After top-k, top-p and min-p, and after typical-p where it follows them.

    Candidates suffice if the last one that is kept is more probable than the least of them: then
    no other token, not even an equal one, could be kept.
    """
    if num_ranked is None:
        ids, weights = None, _weights(exponents)
        probs, _ = kept(weights, row_sums(weights), params)
        sufficed = mx.ones(len(exponents), dtype=mx.bool_)
    else:
        ids = best_columns(exponents, num_ranked)
        weights = _weights(mx.take_along_axis(exponents, ids, axis=-1))
        probs, last = kept(weights, row_sums(_weights(exponents)), params)
        sufficed = ~(last <= mx.min(weights, axis=-1, keepdims=True))[:, 0]
    return _typical_of_kept(probs, params), ids, sufficed


def _of_best(best: Best, params: SamplingParams, vocab_size: int) -> _Left:
    """As `_probable`. As many as top-k keeps always suffice."""
    weights = _weights(best.exponents)
    probs, last = kept(weights, weights if best.total is None else best.total, params)
    sufficed = ~(last <= mx.min(weights, axis=-1, keepdims=True))[:, 0]
    if weights.shape[-1] in (params.top_k, vocab_size):
        sufficed = mx.ones_like(sufficed)
    return _typical_of_kept(probs, params), best.ids, sufficed


def _typical_of_kept(probs: mx.array, params: SamplingParams) -> mx.array:
    if params.typical_p == 1:
        return probs
    ranks = closeness(probs, ordered_sums(expected(probs)))
    probs, _ = typical(probs, ranks, params.typical_p)
    return probs / ordered_sums(probs)


def _typical(exponents: mx.array, mass: float, num_ranked: int | None) -> _Left:
    """After typical-p alone. Candidates suffice if the last one kept is closer than the last."""
    probs = softmax(exponents)
    ids, sufficed = None, mx.ones(len(exponents), dtype=mx.bool_)
    ranks = closeness(probs, row_sums(expected(probs)))
    if num_ranked is not None:
        ids = best_columns(ranks, num_ranked)
        probs, ranks = (mx.take_along_axis(x, ids, axis=-1) for x in (probs, ranks))
    probs, last = typical(probs, ranks, mass)
    if ids is not None:
        sufficed = ~(last <= mx.min(ranks, axis=-1, keepdims=True))[:, 0]
    return probs / ordered_sums(probs), ids, sufficed


def kept(weights: mx.array, total: mx.array, params: SamplingParams) -> tuple[mx.array, mx.array]:
    """The probabilities [R, C] of what top-k, top-p and min-p keep, and the least weight kept.

    weights: [R, C], at least the C largest of each row in the order of their ids; 1 at the peak.
    total: [R, 1], the sum of the whole row, for top-p without top-k.
    """
    ranked = -mx.sort(-weights, axis=-1)
    mass = running_sums(ranked)
    num_kept = mx.sum((ranked > 0) & (ranked >= params.min_p), axis=-1, keepdims=True)
    top_k = min(params.top_k, weights.shape[-1])
    if top_k:
        num_kept = mx.minimum(num_kept, top_k)
    if params.top_p < 1:
        needed = params.top_p * (mass[:, top_k - 1 : top_k] if top_k else total)
        num_kept = mx.minimum(num_kept, 1 + mx.sum(mass < needed, axis=-1, keepdims=True))
    final = mx.maximum(num_kept, 1) - 1
    last = mx.take_along_axis(ranked, final, axis=-1)
    keep = at_least(weights, last, num_kept)
    return weights * keep / mx.take_along_axis(mass, final, axis=-1), last


def _weights(exponents: mx.array) -> mx.array:
    # On a CPU MLX's power takes a third of the time of its exp (49,152 floats: 0.21 and 0.60 ms).
    return mx.power(2.0, exponents)
