"""Latent attention with a sparse index, over short blocks (DeepSeek-V3.2's sparse attention).

An indexer scores all tokens so far by keys of its own and every row attends to the best
`index_topk` of them. mlx-lm gathers them for a single row, and for several attends to everything
under a mask, with the whole context expanded. Here each row of a short block gathers, as it would
alone.
"""

from typing import Any

import mlx.core as mx

from mtplx.models.mla_attention import attend_latent, latent_rows, split_queries


def attend_sparse(attention: Any, x: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
    """Attention of the rows x [B, L, D] over the latent rows so far.

    cache: two, of latent rows with their rotary keys, and of the indexer's keys.
    """
    held, indexed = cache
    offset, num_rows = held.offset, x.shape[1]
    compressed = attention.q_a_layernorm(attention.q_a_proj(x))
    q_nope, q_rope = split_queries(attention, attention.q_b_proj(compressed))
    latent, k_rope = latent_rows(attention, x)
    q_rope, k_rope = attention.rope(q_rope, offset), attention.rope(k_rope, offset)
    latent, k_rope = held.update_and_fetch(latent, k_rope)
    scores = _index_scores(attention.indexer, x, compressed, indexed)
    # The index may go unread for long; its rows are made together with the others.
    held.keys = mx.depends(held.keys, (indexed.keys, indexed.values))
    if latent.shape[2] <= attention.indexer.index_topk:
        found = attend_latent(attention, q_nope, q_rope, latent, k_rope, mask)
    else:
        rows = []
        for i in range(num_rows):
            seen, row = offset + i + 1, (slice(None), slice(None), slice(i, i + 1))
            chosen = _best(scores[row][..., :seen], attention.indexer.index_topk)
            keys = _taken(latent[:, :, :seen], chosen), _taken(k_rope[:, :, :seen], chosen)
            rows.append(attend_latent(attention, q_nope[row], q_rope[row], *keys, None))
        found = mx.concatenate(rows, axis=1)
    output: mx.array = attention.o_proj(mx.flatten(found, 2, 3))
    return output


def _index_scores(indexer: Any, x: mx.array, compressed: mx.array, cache: Any) -> mx.array:
    """How much each row x [B, L, D] wants each token, [B, 1, L, S]."""
    offset = cache.offset
    q = mx.unflatten(indexer.wq_b(compressed), -1, (indexer.n_heads, -1)).swapaxes(1, 2)
    keys = indexer.rope(indexer.k_norm(indexer.wk(x))[:, None], offset=offset)
    keys, _ = cache.update_and_fetch(keys, keys)
    cache.values = mx.zeros_like(cache.keys)  # as mlx-lm does: nothing is ever read from them
    scores = mx.maximum(indexer.rope(q, offset=offset) @ keys.swapaxes(-1, -2), 0)
    weights = indexer.weights_proj(x) * (indexer.n_heads**-0.5 * indexer.softmax_scale)
    weighted = scores * weights.swapaxes(-1, -2)[..., None]
    return mx.sum(weighted, axis=1, keepdims=True)


def _best(scores: mx.array, count: int) -> mx.array | None:
    """The `count` best columns of scores [B, 1, 1, S], [B, 1, count]; None for all of them."""
    if scores.shape[-1] <= count:
        return None
    return mx.argpartition(scores, kth=-count, axis=-1)[:, :, 0, -count:]


def _taken(rows: mx.array, chosen: mx.array | None) -> mx.array:
    """The chosen ones of rows [B, 1, S, W]."""
    if chosen is None:
        return rows
    index = mx.broadcast_to(chosen[..., None], (*chosen.shape, rows.shape[-1]))
    return mx.take_along_axis(rows, index, axis=2)
