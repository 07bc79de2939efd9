"""Typical-p: keep the tokens whose surprise is nearest to what the row makes one expect.

Locally typical sampling of Meister et al., arXiv 2202.00666, section 4.
"""

import mlx.core as mx

from mtplx.warps.ranking import at_least
from mtplx.warps.sums import running_sums


def surprises(probs: mx.array) -> mx.array:
    """-log p [R, C], +inf where p is 0."""
    return -mx.log(probs)


def expected(probs: mx.array) -> mx.array:
    """The terms [R, C] of the entropy, 0 where p is 0."""
    return mx.where(probs > 0, probs * surprises(probs), 0)


def closeness(probs: mx.array, entropy: mx.array) -> mx.array:
    """[R, C], 0 where the surprise is the entropy [R, 1] and less the further it is away."""
    return -mx.abs(surprises(probs) - entropy)


def typical(probs: mx.array, ranks: mx.array, mass: float) -> tuple[mx.array, mx.array]:
    """The probabilities [R, C] of the fewest tokens, the closest ones, whose mass reaches `mass`,
    not normalised, and the least closeness that is kept [R, 1].

    ranks: [R, C], the closeness of each.
    """
    order = mx.argsort(-ranks, axis=-1)
    reached = running_sums(mx.take_along_axis(probs, order, axis=-1))
    num_kept = 1 + mx.sum(reached < mass, axis=-1, keepdims=True)
    num_kept = mx.minimum(num_kept, mx.maximum(mx.sum(probs > 0, axis=-1, keepdims=True), 1))
    last = mx.take_along_axis(ranks, mx.take_along_axis(order, num_kept - 1, axis=-1), axis=-1)
    return probs * at_least(ranks, last, num_kept), last
