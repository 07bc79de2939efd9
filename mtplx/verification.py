"""Acceptance laws: how much of a draft is kept so that the output keeps the target's distribution.

A law takes the target's distributions at the K + 1 rows of a verify pass, the draft with the
distributions it was drawn from, and the random numbers of the round. For every draft and target,
the tokens it emits have the joint distribution that drawing from the target one by one gives.
"""

from collections.abc import Callable, Mapping

import mlx.core as mx

from mtplx.coupled import verify_coupled
from mtplx.kernels import sampler
from mtplx.kernels.source import Maker
from mtplx.sampling import draw
from mtplx.speculation import Acceptance, Draft, Uniforms
from mtplx.warps.sums import running_sums

Law = Callable[[mx.array, Draft, Uniforms], Acceptance]


def verify(
    p: mx.array, draft: Draft, uniforms: Uniforms, *, maker: Maker | None = None
) -> Acceptance:
    """Keep drafted tokens one by one, each with probability min(1, p / q).

    The first one that is refused is replaced by a draw from the normalised positive part of
    p - q; after none, a bonus token is drawn from the last row. An empty draft is a plain draw.

    p: [K + 1, V] float32, row i the target's distribution after i drafted tokens. maker: who runs
    kernels, where it is not MLX on a Mac's GPU. Lazy; reads nothing to the host and changes no
    input. Speculative sampling of Leviathan et al., arXiv 2211.17192, algorithm 1, and Chen et
    al., arXiv 2302.01318, algorithm 2.
    """
    num_draft = len(draft)
    if not num_draft:
        zero = mx.zeros((), dtype=mx.int32)
        return Acceptance(zero, draw(p, uniforms.choose, maker=maker), zero)
    p_drawn = mx.take_along_axis(p[:-1], draft.token_ids[:, None], axis=-1)[:, 0]  # [K]
    kept = accepts(uniforms.accept, p_drawn, _drawn_probs(draft, p.shape[-1]))
    num_accepted = mx.sum(mx.cumprod(kept.astype(mx.int32)))
    if (maker := sampler.kernels_here(maker)) is not None:
        found = _left(p, draft, num_accepted[None], None, maker)
        first = mx.zeros(1, dtype=mx.int32)
        return _drawn(draft, uniforms, num_accepted, found, found.sums(), first)
    refused = num_accepted < num_draft
    row = mx.take(p, num_accepted, axis=0)  # [V]
    left = residual(row, *_proposal(draft, mx.minimum(num_accepted, num_draft - 1), refused))
    return _completed(draft, uniforms, num_accepted, left, row)


def verify_block(
    p: mx.array, draft: Draft, uniforms: Uniforms, *, maker: Maker | None = None
) -> Acceptance:
    """Keep the longest prefix of the draft that passes a test of its own.

    Never fewer tokens than `verify` in expectation, and as many where a draft has one position or
    is one-hot throughout, which `verify` then decides. Shapes are those of `verify`. Block
    verification of Sun et al., arXiv 2403.10444, algorithm 2: with P_0 = 1,
    P_i = min(1, P_{i-1} p(x_i) / q(x_i)) and S_i the mass of the positive part of
    P_i p_{i+1} - q_{i+1}, prefix i passes with probability S_i / (S_i + 1 - P_i), the whole draft
    with P_K. What follows prefix i is drawn from that positive part, after the whole from p.
    """
    num_draft = len(draft)
    if num_draft < 2 or draft.probs is None:
        return verify(p, draft, uniforms, maker=maker)
    p_drawn = mx.take_along_axis(p[:-1], draft.token_ids[:, None], axis=-1)[:, 0]  # [K]
    q_drawn = _drawn_probs(draft, p.shape[-1])
    carried = [mx.ones_like(p_drawn[0])]
    for i in range(num_draft - 1):
        carried.append(_carried(carried[i] * p_drawn[i], q_drawn[i]))
    weights = mx.stack(carried)  # [K], P_0 .. P_{K-1}
    maker = sampler.kernels_here(maker)
    if maker is not None:
        found = _left(p, draft, mx.arange(num_draft + 1), weights, maker)
        sums = found.sums()
        mass = running_sums(sums[:-1, 0])[:, -1]  # the same for one row as for several
    else:
        left = residual(weights[:, None] * p[:-1], *_columns(draft))  # [K, V]
        mass = mx.sum(left, axis=-1)  # [K], S_0 .. S_{K-1}
    passing = mx.concatenate([mass[1:], weights[-1:] * p_drawn[-1:]])
    whole = mx.concatenate([mass[1:] + (1 - weights[1:]), q_drawn[-1:]])
    passed = accepts(uniforms.accept, passing, whole)
    num_accepted = mx.max(mx.arange(1, num_draft + 1) * passed)
    if maker is not None:
        return _drawn(draft, uniforms, num_accepted, found, sums, num_accepted[None])
    left = mx.take(mx.concatenate([left, p[-1:]]), num_accepted, axis=0)
    return _completed(draft, uniforms, num_accepted, left, mx.take(p, num_accepted, axis=0))


LAWS: Mapping[str, Law] = {
    "block": verify_block,
    "rejection": verify,
    "coupled": verify_coupled,
}


def accepts(uniform: mx.array, p: mx.array, q: mx.array) -> mx.array:
    """Whether a token drawn with probability q is kept where the target gives it p.

    Strict, so that a token the target forbids is refused even at uniform 0; without a division,
    so that q may be as small as it likes.
    """
    return uniform * q < p


def residual(p: mx.array, support: mx.array | None, q: mx.array) -> mx.array:
    """The positive part of p - q, [..., V]: what a refused token is replaced from, not normalised.

    q: [..., S] over the ids `support` [S], added up where an id repeats, and 0 elsewhere; [..., V]
    where support is None.
    """
    difference = p - q if support is None else p.at[..., support].subtract(q)
    return mx.maximum(difference, 0)


def _carried(p: mx.array, q: mx.array) -> mx.array:
    """min(1, p / q), without dividing where that could overflow; 0 where both are 0."""
    return mx.where(q > p, p / mx.where(q > p, q, 1), p > 0)


def _completed(
    draft: Draft, uniforms: Uniforms, num_accepted: mx.array, left: mx.array, row: mx.array
) -> Acceptance:
    """The accepted prefix and a token drawn from `left` [V], or from p `row` [V] if it is empty."""
    refused = num_accepted < len(draft)
    underflow = mx.logical_and(refused, mx.logical_not(mx.sum(left) > 0))
    chosen = draw(left + underflow * row, mx.take(uniforms.choose, num_accepted, axis=0))
    return _emitted(draft, num_accepted, chosen, underflow)


def _left(
    p: mx.array, draft: Draft, rows: mx.array, scales: mx.array | None, maker: Maker
) -> sampler.Left:
    """What the kernels draw from at these rows [G] of p, of which the last has no draft."""
    if draft.probs is None:
        return sampler.Left(p, rows, tokens=draft.token_ids, scales=scales, maker=maker)
    support, q = _columns(draft)
    if support is not None:
        q = mx.take(q, mx.minimum(rows, len(draft) - 1)[: len(draft)], axis=0)
        q = mx.zeros((len(q), p.shape[-1])).at[..., support].add(q)
    return sampler.Left(p, rows, q, scales=scales, maker=maker)


def _drawn(
    draft: Draft,
    uniforms: Uniforms,
    num_accepted: mx.array,
    left: sampler.Left,
    sums: mx.array,
    picked: mx.array,
) -> Acceptance:
    """As `_completed`, by kernels: from the one of their rows that is picked [1]."""
    chosen, empty = left.draw(sums, picked, uniforms.choose)
    return _emitted(draft, num_accepted, chosen[0], empty[0])


def _emitted(
    draft: Draft, num_accepted: mx.array, chosen: mx.array, underflow: mx.array
) -> Acceptance:
    token_ids = mx.concatenate([draft.token_ids, chosen[None]])
    token_ids = mx.where(mx.arange(len(draft) + 1) == num_accepted, chosen, token_ids)
    return Acceptance(
        num_accepted.astype(mx.int32), token_ids.astype(mx.int32), underflow.astype(mx.int32)
    )


def _drawn_probs(draft: Draft, vocab_size: int) -> mx.array:
    """The q of each drafted token, [K], or [] for the 1 of a one-hot draft."""
    if draft.probs is None:
        return mx.array(1.0)
    sampled = _sampled(draft)
    columns = draft.token_ids if len(sampled) == len(draft) else draft.token_ids[mx.array(sampled)]
    if draft.support is not None:
        order = mx.arange(draft.support.shape[0], dtype=mx.int32)
        column_of = mx.zeros(vocab_size, dtype=mx.int32)
        column_of = mx.put_along_axis(column_of, draft.support, order, axis=0)
        columns = mx.take(column_of, columns)
    drawn = mx.take_along_axis(draft.probs, columns[:, None], axis=-1)[:, 0]
    if len(sampled) == len(draft):
        return drawn
    return mx.put_along_axis(mx.ones(len(draft), drawn.dtype), mx.array(sampled), drawn, axis=0)


def _proposal(draft: Draft, index: mx.array, refused: mx.array) -> tuple[mx.array | None, mx.array]:
    """The q that token `index` was drawn from, as (support, probabilities); 0 unless refused."""
    support, q = _columns(draft)
    return support, mx.take(q, index, axis=0) * refused


def _columns(draft: Draft) -> tuple[mx.array | None, mx.array]:
    """The q of all positions, [K, S], and the ids of its columns, which may repeat and add up."""
    num_draft = len(draft)
    if draft.probs is None:
        return draft.token_ids, mx.eye(num_draft)
    sampled = _sampled(draft)
    if len(sampled) == num_draft:
        return draft.support, draft.probs
    one_hot = [i for i in range(num_draft) if i not in sampled]
    rows = [sampled.index(i) if i in sampled else len(sampled) for i in range(num_draft)]
    q = mx.take(mx.pad(draft.probs, [(0, 1), (0, 0)]), mx.array(rows), axis=0)  # 0 where one-hot
    support = mx.arange(q.shape[-1]) if draft.support is None else draft.support
    columns = mx.array(one_hot)
    ids = mx.concatenate([support.astype(mx.int32), mx.take(draft.token_ids, columns)])
    return ids, mx.concatenate([q, mx.take(mx.eye(num_draft, dtype=q.dtype), columns, axis=1)], 1)


def _sampled(draft: Draft) -> tuple[int, ...]:
    """The positions that have a row in draft.probs."""
    return tuple(range(len(draft))) if draft.sampled is None else draft.sampled
