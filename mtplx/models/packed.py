"""Matrices that stay in memory as they are on disk, multiplied by our own kernels.

`PackedMatrix` is one as llama-type trunks see it; the modules stand in for mlx.nn's in a model of
mlx-lm's. No copy of the weights in another type is ever made.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn

from mtplx.kernels.heads import multiply_each, multiply_each_turned
from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import (
    DEFAULT_TILES,
    Tiles,
    embed,
    multiply,
    multiply_by_experts,
    multiply_by_sorted_experts,
)
from mtplx.kernels.rows import num_rows_of, taken_rows
from mtplx.kernels.source import Maker, metal
from mtplx.kernels.tiling import Tiling
from mtplx.models.matrix import JoinedMatrix


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """An [N, K] matrix (matrix.Matrix). dtype: of the rows it gives. maker: who runs kernels.

    tiling: which tiles they take; None is the usual ones.
    """

    weight: PackedWeight
    dtype: mx.Dtype = mx.float32
    maker: Maker = metal
    tiling: Tiling | None = None

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.weight.shape
        return num_rows, num_columns

    def arrays(self) -> tuple[mx.array, ...]:
        planes = (self.weight.codes, self.weight.scales, self.weight.biases)
        return tuple(a for a in (*planes, self.weight.multiplier) if a is not None)

    @property
    def tiles(self) -> Tiles:
        return DEFAULT_TILES if self.tiling is None else self.tiling.of(self.weight)

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        product = multiply(rows, self.weight, tiles=self.tiles, maker=self.maker)
        return product.reshape(*x.shape[:-1], -1)

    def rows(self, ids: mx.array) -> mx.array:
        flat = ids.reshape(-1).astype(mx.uint32)
        found = embed(flat, self.weight, self.dtype, maker=self.maker)
        return found.reshape(*ids.shape, -1)

    def take(self, ids: mx.array) -> "PackedMatrix":
        return replace(self, weight=taken_rows(self.weight, ids))


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A matrix for one module of a model, which a file may have in another order than the model.

    columns: [K], which element of the input stands where the matrix has its columns. rows: [N],
    which of its rows each element of the result is made by. turned: whether the model has columns
    for rows.
    """

    matrix: PackedMatrix | JoinedMatrix
    columns: mx.array | None = None
    rows: mx.array | None = None
    turned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        matrix = self.matrix
        shape = matrix.weight.shape if isinstance(matrix, PackedMatrix) else matrix.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned else shape


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

    def __init__(self, matrix: PackedMatrix, bias: mx.array | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix
        self._bias = bias

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.weight.shape

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [.., 1 or k, 1, K] and the experts [.., k] of its rows -> [.., k, 1, N]."""
        experts, matrix, slots = indices.reshape(-1), self.matrix, 1
        weight, tiles, maker = matrix.weight, matrix.tiles, matrix.maker
        if not sorted_indices and x.shape[:-2] == (*indices.shape[:-1], 1):
            slots = indices.shape[-1]  # a row goes to several experts, and is not copied for each
        else:
            x = mx.broadcast_to(x, (*indices.shape, 1, x.shape[-1]))
        rows = x.reshape(-1, x.shape[-1])
        if sorted_indices:
            below = experts[None] < mx.arange(weight.shape[0] + 1)[:, None]
            starts = mx.sum(below, axis=1).astype(mx.uint32)
            product = multiply_by_sorted_experts(rows, weight, starts, tiles=tiles, maker=maker)
        else:
            ids = experts.astype(mx.uint32)
            product = multiply_by_experts(rows, weight, ids, slots=slots, tiles=tiles, maker=maker)
        product = product.reshape(*indices.shape, 1, -1)
        if self._bias is None:
            return product
        return product + self._bias[indices][..., None, :].astype(product.dtype)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return [*self.matrix.arrays(), *([] if self._bias is None else [self._bias])]


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
