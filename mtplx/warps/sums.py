"""Sums in float32 whose roundings do not pile up, whatever the number of terms."""

import mlx.core as mx

_BLOCK = 32  # terms that a running sum adds up before it starts anew


def row_sums(x: mx.array) -> mx.array:
    """The sums [..., 1] along the last axis, a few terms at a time."""
    while x.shape[-1] > _BLOCK:
        x = _padded(x, _BLOCK)
        x = mx.sum(x.reshape(*x.shape[:-1], _BLOCK, -1), axis=-2)
    return mx.sum(x, axis=-1, keepdims=True)


def running_sums(x: mx.array) -> mx.array:
    """Inclusive sums along the last axis, block by block.

    Each depends on the terms up to it alone, so it is bit for bit that of a longer array.
    """
    if x.shape[-1] <= _BLOCK:
        return mx.cumsum(x, axis=-1)
    within = mx.cumsum(split(x, _BLOCK), axis=-1)  # [..., C / 32, 32]
    ends = running_sums(within[..., -1])
    before = mx.pad(ends[..., :-1], [(0, 0)] * (x.ndim - 1) + [(1, 0)])
    return (within + before[..., None]).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def ordered_sums(x: mx.array) -> mx.array:
    """The sums [..., 1] of numbers of 0 or more, the largest first.

    They depend on the positive entries alone, not on where these stand nor on the zeros between.
    """
    positive = mx.sum(x > 0, axis=-1, keepdims=True)
    running = running_sums(-mx.sort(-x, axis=-1))
    return mx.take_along_axis(running, mx.maximum(positive, 1) - 1, axis=-1)


def split(x: mx.array, size: int) -> mx.array:
    """[..., S] as [..., S / size, size], padded with zeros where size does not divide S."""
    x = _padded(x, size)
    return x.reshape(*x.shape[:-1], -1, size)


def _padded(x: mx.array, size: int) -> mx.array:
    missing = -x.shape[-1] % size
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
