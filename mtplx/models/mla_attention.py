"""Latent attention of a few rows, absorbed: what mlx-lm computes for one row, for several.

The operations and their order are those of mlx-lm's single row, so that a block has the bits of
its rows one by one wherever a product of several rows has. Every function takes mlx-lm's attention
module, for its weights and sizes.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mtplx.models.packed import PackedHeads

Finish = Callable[[Any, mx.array, mx.array], mx.array]
"""(attention module, what its heads found [B, L, H, V], its input [B, L, D]) -> [B, L, H * V]"""


def joined(attention: Any, found: mx.array, x: mx.array) -> mx.array:
    """The heads side by side, as they are (Finish)."""
    return mx.flatten(found, 2, 3)


def gated_channels(attention: Any, found: mx.array, x: mx.array) -> mx.array:
    """With a gate for every channel, in models that have one (Finish)."""
    side_by_side = mx.flatten(found, 2, 3)
    return side_by_side * mx.sigmoid(attention.g_proj(x)) if attention.use_gate else side_by_side


def gated_heads(attention: Any, found: mx.array, x: mx.array) -> mx.array:
    """With a gate for every head (Finish)."""
    gate = mx.sigmoid(attention.g_proj(x).astype(mx.float32)).astype(found.dtype)
    return mx.flatten(found * gate[..., None], 2, 3)


def attend_absorbed(
    attention: Any,
    x: mx.array,
    mask: mx.array | str | None,
    cache: Any,
    finish: Finish = joined,
    query_scale: mx.array | None = None,
) -> mx.array:
    """Attention of the rows x [B, L, D] over all latent rows so far, [B, L, D]."""
    q_nope, q_rope = queries(attention, x)
    latent, k_rope = latent_rows(attention, x)
    if "rope" in attention:
        offset = cache.offset if cache is not None else 0
        q_rope, k_rope = attention.rope(q_rope, offset), attention.rope(k_rope, offset)
    if query_scale is not None:
        q_nope, q_rope = q_nope * query_scale, q_rope * query_scale
    if cache is not None:
        latent, k_rope = cache.update_and_fetch(latent, k_rope)
    found = attend_latent(attention, q_nope, q_rope, latent, k_rope, mask)
    project = attention.dense if "dense" in attention else attention.o_proj
    rows: mx.array = project(finish(attention, found, x))
    return rows


def queries(attention: Any, x: mx.array) -> tuple[mx.array, mx.array]:
    """The queries of rows x [B, L, D], without position and for it: [B, H, L, *] each."""
    if "q_a_proj" not in attention:
        return split_queries(attention, attention.q_proj(x))
    compressed = attention.q_a_layernorm(attention.q_a_proj(x))
    return split_queries(attention, attention.q_b_proj(compressed))


def split_queries(attention: Any, q: mx.array) -> tuple[mx.array, mx.array]:
    """The two parts of the queries q [B, L, H * (nope + rope)], [B, H, L, *] each."""
    own = attention.embed_q
    heads = own.shape[0] if isinstance(own, PackedHeads) else own.weight.shape[0]
    q = mx.unflatten(q, -1, (heads, -1)).transpose(0, 2, 1, 3)
    if (scale := getattr(attention, "mla_scale_q_lora", None)) is not None:
        q = q * scale
    q_nope, q_rope = mx.split(q, [attention.qk_nope_head_dim], axis=-1)
    return q_nope, q_rope


def latent_rows(attention: Any, x: mx.array) -> tuple[mx.array, mx.array]:
    """What the cache holds of rows x [B, L, D]: latent and rotary key, [B, 1, L, *] each."""
    compressed = attention.kv_a_proj_with_mqa(x)
    compressed, k_rope = mx.split(compressed, [attention.kv_lora_rank], axis=-1)
    latent = attention.kv_a_layernorm(compressed)
    if (scale := getattr(attention, "mla_scale_kv_lora", None)) is not None:
        latent = latent * scale
    return latent[:, None], k_rope[:, None]


def attend_latent(
    attention: Any,
    q_nope: mx.array,
    q_rope: mx.array,
    latent: mx.array,
    k_rope: mx.array,
    mask: mx.array | str | None,
) -> mx.array:
    """What every head finds for L rows among S latent rows, [B, L, H, V].

    q_nope, q_rope: [B, H, L, *]. latent, k_rope: [B, 1, S, *]. mask: [L, S] bool or "causal".
    All heads' rows are those of one product, so that the latent rows are read once for all.
    """
    batch, heads, num_rows, _ = q_nope.shape
    scores = (q_rope * attention.scale) @ k_rope.swapaxes(-1, -2)  # [B, H, L, S]
    if isinstance(mask, str):
        columns = mx.arange(scores.shape[-1])
        mask = columns <= columns[-num_rows:, None]
    if mask is not None:
        lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
        scores = mx.where(mask, scores, lowest)
    found = mx.fast.scaled_dot_product_attention(
        attention.embed_q(q_nope).reshape(batch, 1, heads * num_rows, -1),
        latent,
        latent,
        scale=attention.scale,
        mask=scores.reshape(batch, 1, heads * num_rows, -1),
    )
    found = attention.unembed_out(found.reshape(batch, heads, num_rows, -1))
    return mx.transpose(found, (0, 2, 1, 3))
