"""Acceptance laws: how much of a draft is kept so that the output keeps the target's distribution.

A law takes the target's distributions at the K + 1 rows of a verify pass, the draft with the
distributions it was drawn from, and the random numbers of the round. For every draft and target,
the tokens it emits have the joint distribution that drawing from the target one by one gives.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from mtplx.sampling import draw
from mtplx.speculation import Acceptance, Draft, Uniforms

Law = Callable[[mx.array, Draft, Uniforms], Acceptance]


def verify(p: mx.array, draft: Draft, uniforms: Uniforms) -> Acceptance:
    """Keep drafted tokens one by one, each with probability min(1, p / q).

    The first one that is refused is replaced by a draw from the normalised positive part of
    p - q; after none, a bonus token is drawn from the last row. An empty draft is a plain draw.

    p: [K + 1, V] float32, row i the target's distribution after i drafted tokens. Lazy; reads
    nothing to the host and changes no input. Speculative sampling of Leviathan et al., arXiv
    2211.17192, algorithm 1, and Chen et al., arXiv 2302.01318, algorithm 2.
    """
    num_draft = len(draft)
    if not num_draft:
        zero = mx.zeros((), dtype=mx.int32)
        return Acceptance(zero, draw(p, uniforms.choose), zero)
    p_drawn = mx.take_along_axis(p[:-1], draft.token_ids[:, None], axis=-1)[:, 0]  # [K]
    kept = accepts(uniforms.accept, p_drawn, _drawn_probs(draft, p.shape[-1]))
    num_accepted = mx.sum(mx.cumprod(kept.astype(mx.int32)))
    refused = num_accepted < num_draft
    row = mx.take(p, num_accepted, axis=0)  # [V]
    left = residual(row, *_proposal(draft, mx.minimum(num_accepted, num_draft - 1), refused))
    underflow = mx.logical_and(refused, mx.logical_not(mx.sum(left) > 0))
    chosen = draw(left + underflow * row, mx.take(uniforms.choose, num_accepted, axis=0))
    token_ids = mx.concatenate([draft.token_ids, chosen[None]])
    token_ids = mx.where(mx.arange(num_draft + 1) == num_accepted, chosen, token_ids)
    return Acceptance(num_accepted, token_ids.astype(mx.int32), underflow.astype(mx.int32))


LAWS: Mapping[str, Law] = {"rejection": verify}


def accepts(uniform: mx.array, p: mx.array, q: mx.array) -> mx.array:
    """Whether a token drawn with probability q is kept where the target gives it p.

    Strict, so that a token the target forbids is refused even at uniform 0; without a division,
    so that q may be as small as it likes.
    """
    return uniform * q < p


def residual(p: mx.array, support: mx.array | None, q: mx.array) -> mx.array:
    """The positive part of p - q, [V]: what a refused token is replaced from, not normalised.

    q: [S] over the ids `support` [S], and 0 elsewhere; [V] where support is None.
    """
    difference = p - q if support is None else p.at[support].subtract(q)
    return mx.maximum(difference, 0)


def _drawn_probs(draft: Draft, vocab_size: int) -> mx.array:
    """The q of each drafted token, [K], or [] for the 1 of a one-hot draft."""
    if draft.probs is None:
        return mx.array(1.0)
    columns = draft.token_ids
    if draft.support is not None:
        order = mx.arange(draft.support.shape[0], dtype=mx.int32)
        column_of = mx.zeros(vocab_size, dtype=mx.int32)
        column_of = mx.put_along_axis(column_of, draft.support, order, axis=0)
        columns = mx.take(column_of, columns)
    return mx.take_along_axis(draft.probs, columns[:, None], axis=-1)[:, 0]


def _proposal(draft: Draft, index: mx.array, refused: mx.array) -> tuple[mx.array | None, mx.array]:
    """The q that token `index` was drawn from, as (support, probabilities); 0 unless refused."""
    if draft.probs is None:
        return mx.take(draft.token_ids, index)[None], refused[None].astype(mx.float32)
    return draft.support, mx.take(draft.probs, index, axis=0) * refused
