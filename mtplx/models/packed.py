"""Modules of packed matrices, which stand in for mlx.nn's in a model of mlx-lm's."""

from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn

from mtplx.kernels.heads import multiply_each, multiply_each_turned
from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import multiply, multiply_by_experts, multiply_by_sorted_experts
from mtplx.kernels.rows import num_rows_of
from mtplx.models.packed_matrix import GroupedExperts, PackedMatrix, PackedPart


class PackedLinear(nn.Module):
    """In place of nn.Linear. bias: [N] or None."""

    def __init__(self, part: PackedPart, bias: mx.array | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # No arrays of the module's own, so no parameters: loading is over.
        self.part = part
        self._bias = bias

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape

    def __call__(self, x: mx.array) -> mx.array:
        if self.part.columns is not None:
            x = x[..., self.part.columns]
        product = self.part.matrix(x)
        if self.part.rows is not None:
            product = product[..., self.part.rows]
        return product if self._bias is None else product + self._bias.astype(product.dtype)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        others = (self.part.columns, self.part.rows, self._bias)
        return [*self.part.matrix.arrays(), *(a for a in others if a is not None)]


class PackedEmbedding(nn.Module):
    """In place of nn.Embedding."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.weight.shape

    def __call__(self, ids: mx.array) -> mx.array:
        return self.matrix.rows(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """Its product with x, as an output head that is tied to it."""
        return self.matrix(x)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return list(self.matrix.arrays())


class PackedExperts(nn.Module):
    """In place of mlx-lm's SwitchLinear: a matrix [N, K] of each expert. bias: [E, N] or None."""

    def __init__(self, matrix: PackedMatrix | GroupedExperts, bias: mx.array | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix
        self._bias = bias

    @property
    def shape(self) -> tuple[int, ...]:
        own = self.matrix
        return own.weight.shape if isinstance(own, PackedMatrix) else own.shape

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [.., 1 or k, 1, K] and the experts [.., k] of its rows -> [.., k, 1, N]."""
        experts, slots = indices.reshape(-1), 1
        if not sorted_indices and x.shape[:-2] == (*indices.shape[:-1], 1):
            slots = indices.shape[-1]  # a row goes to several experts, and is not copied for each
        else:
            x = mx.broadcast_to(x, (*indices.shape, 1, x.shape[-1]))
        rows = x.reshape(-1, x.shape[-1])
        ranges = _ranges(experts, self.shape[0]) if sorted_indices else None
        if isinstance(self.matrix, PackedMatrix):
            product = _by_experts(self.matrix, rows, experts, slots, ranges)
        else:
            product = _by_groups(self.matrix, rows, experts, slots, ranges)
        product = product.reshape(*indices.shape, 1, -1)
        if self._bias is None:
            return product
        return product + self._bias[indices][..., None, :].astype(product.dtype)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return [*self.matrix.arrays(), *([] if self._bias is None else [self._bias])]


def _ranges(experts: mx.array, count: int) -> mx.array:
    """Where the rows of each expert begin and end among those [P] that are sorted by expert."""
    below = experts[None] < mx.arange(count + 1)[:, None]
    starts = mx.sum(below, axis=1).astype(mx.uint32)
    return mx.stack([starts[:-1], starts[1:]], axis=1)


def _by_experts(
    matrix: PackedMatrix, rows: mx.array, experts: mx.array, slots: int, ranges: mx.array | None
) -> mx.array:
    weight, tiles, maker = matrix.weight, matrix.tiles, matrix.maker
    if ranges is not None:
        return multiply_by_sorted_experts(rows, weight, ranges, tiles=tiles, maker=maker)
    ids = experts.astype(mx.uint32)
    return multiply_by_experts(rows, weight, ids, slots=slots, tiles=tiles, maker=maker)


def _by_groups(
    experts: GroupedExperts, rows: mx.array, ids: mx.array, slots: int, ranges: mx.array | None
) -> mx.array:
    """Each group makes the rows of its own experts and leaves the others undefined."""
    product = None
    for group in experts.groups:
        places = group.places[ids]
        own = None if ranges is None else ranges[group.ids]
        made = _by_experts(group.matrix, rows, places, slots, own)
        is_own = (places < group.ids.size)[:, None]
        product = made if product is None else mx.where(is_own, made, product)
    assert product is not None
    return product


class PackedHeads(nn.Module):
    """In place of mlx-lm's MultiLinear: a matrix [N, K] of each head of latent attention.

    turned: the module that it is in place of has the transpose of each.
    """

    def __init__(self, matrix: PackedMatrix, turned: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix
        self._turned = turned

    @property
    def shape(self) -> tuple[int, ...]:
        return PackedPart(self.matrix, turned=self._turned).shape

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        """x [B, H or 1, L, *] times the transpose of each matrix of the module, or times the
        matrix itself: [B, H, L, *]."""
        weight, tiles, maker = self.matrix.weight, self.matrix.tiles, self.matrix.maker
        batch, heads, length, width = x.shape
        along_rows = transpose != self._turned
        if heads == 1 and along_rows:  # the same rows for all heads, of which there may be many
            product = multiply(x.reshape(-1, width), _as_one(weight), tiles=tiles, maker=maker)
            return product.reshape(batch, length, len(weight.codes), -1).swapaxes(1, 2)
        x = mx.broadcast_to(x, (batch, len(weight.codes), length, width))
        rows = mx.flatten(x.swapaxes(0, 1), 1, 2)  # [H, B * L, *]
        if along_rows:
            product = multiply_each(rows, weight, tiles=tiles, maker=maker)
        else:
            product = multiply_each_turned(rows, weight, maker=maker)
        return mx.unflatten(product, 1, (batch, length)).swapaxes(0, 1)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return list(self.matrix.arrays())


def _as_one(weight: PackedWeight) -> PackedWeight:
    """A stack of matrices, one on top of the other."""
    rows = num_rows_of(weight)
    return replace(weight, shape=(rows, weight.shape[-1]), codes=weight.codes.reshape(rows, -1))


PackedModule: TypeAlias = PackedLinear | PackedEmbedding | PackedExperts | PackedHeads


def packed_modules(model: Any) -> list[PackedModule]:
    """The modules of a model that hold packed weights."""
    return [module for module in model.modules() if isinstance(module, PackedModule)]


def held_arrays(model: Any) -> list[mx.array]:
    """What the packed modules of a model hold, which are not among its parameters."""
    return [array for module in packed_modules(model) for array in module.held()]


def num_packed_weights(model: Any) -> int:
    """How many weights they stand for."""
    return sum(prod(module.shape) for module in packed_modules(model))
