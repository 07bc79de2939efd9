"""Rotary positions and attention over cached keys, for the rows of one pass.

On a GPU these are MLX's own kernels. On a CPU its fast.rope and fast.scaled_dot_product_attention
are put together from a dozen small operations each, anew for every layer: a quarter of a pass over
one row. What all layers share, angles and mask, is made once a pass here instead.
"""

import math
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Rows:
    """T consecutive rows of a sequence, from position `offset` on.

    cos, sin: [T, head_dim], the two halves of a head side by side; sin is negative in the first.
        Neither on a GPU.
    mask: [T, S] over what is attended to, 0 or -inf; None for a single row that sees all of it, and
        on a GPU where rows see what is before them.
    freqs: [head_dim / 2], on a GPU where the wavelengths are stretched.
    """

    offset: int
    cos: mx.array | None = None
    sin: mx.array | None = None
    mask: mx.array | None = None
    freqs: mx.array | None = None


def rows_at(
    offset: int,
    num_rows: int,
    head_dim: int,
    rope_base: float,
    rope_factors: tuple[float, ...] = (),
) -> Rows:
    """The rows of a pass of `num_rows` tokens after `offset` others.

    rope_factors: [head_dim / 2], by how much each wavelength is stretched; none for not at all.
    """
    powers = mx.arange(0, head_dim, 2, dtype=mx.float32) * (-1 / head_dim)
    if mx.default_device() != mx.cpu:
        if not rope_factors:
            return Rows(offset)
        return Rows(offset, freqs=mx.power(rope_base, -powers) * mx.array(rope_factors))
    positions = mx.arange(offset, offset + num_rows)
    angles = positions[:, None] * mx.power(rope_base, powers)
    if rope_factors:
        angles = angles / mx.array(rope_factors)
    cos, sin = mx.cos(angles), mx.sin(angles)
    mask = None
    if num_rows > 1:
        mask = mx.where(mx.arange(offset + num_rows) <= positions[:, None], 0.0, -mx.inf)
    return Rows(
        offset, mx.concatenate([cos, cos], axis=-1), mx.concatenate([-sin, sin], axis=-1), mask
    )


def rotate(x: mx.array, rows: Rows, rope_base: float) -> mx.array:
    """Rotary position embedding of x [B, H, T, head_dim], halves rotated against each other."""
    width = x.shape[-1]
    if rows.cos is None or rows.sin is None:
        base = rope_base if rows.freqs is None else None
        return mx.fast.rope(
            x,
            width,
            traditional=False,
            base=base,
            scale=1.0,
            offset=rows.offset,
            freqs=rows.freqs,
        )
    swapped = mx.concatenate([x[..., width // 2 :], x[..., : width // 2]], axis=-1)
    return x * rows.cos + swapped * rows.sin


def attend(q: mx.array, keys: mx.array, values: mx.array, rows: Rows) -> mx.array:
    """q [B, H, T, D] over all rows so far, keys and values [B, H_kv, S, D] -> [B, H, T, D].

    The result is in q's type, whatever the keys and values are kept in.
    """
    batch, heads, num_rows, width = q.shape
    scale = width**-0.5
    if rows.cos is None:
        mask = "causal" if rows.mask is None else rows.mask.astype(keys.dtype)
        # MLX brings arrays of several types to the largest: here it would copy the whole cache.
        mixed = mx.fast.scaled_dot_product_attention(
            q.astype(keys.dtype), keys, values, scale=scale, mask=mask if num_rows > 1 else None
        )
        return mixed.astype(q.dtype)
    # The heads that share a key head are one product, whose rows are theirs. Powers of two, because
    # they take MLX's CPU a third of the time that exp takes.
    groups = (q * (scale * math.log2(math.e))).reshape(batch, keys.shape[1], -1, width)
    scores = (groups.astype(keys.dtype) @ keys.swapaxes(-1, -2)).astype(q.dtype)
    if rows.mask is not None:
        shape = scores.shape
        scores = (scores.reshape(batch, heads, num_rows, -1) + rows.mask).reshape(shape)
    weights = mx.power(2.0, scores - scores.max(axis=-1, keepdims=True))
    mixed = (weights.astype(values.dtype) @ values) / weights.sum(axis=-1, keepdims=True)
    return mixed.reshape(batch, heads, num_rows, width)
