"""Matrices that stay in memory as they are on disk, multiplied by our own kernels: one, or those of
the experts of a layer, which may be packed in several ways. No copy of the weights in another type
is ever made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import mlx.core as mx

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import DEFAULT_TILES, Tiles, embed, multiply
from mtplx.kernels.rows import taken_rows
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


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Experts [E', N, K] of a layer that are packed alike.

    ids: [E'] uint32, which of the layer's E they are. places: [E] uint32, where among them each of
    the layer's is; E' for those that are not.
    """

    matrix: PackedMatrix
    ids: mx.array
    places: mx.array


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """The experts [E, N, K] of a layer, a group for each way in which some are packed."""

    groups: tuple[ExpertGroup, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.groups[0]
        return (first.places.size, *first.matrix.weight.shape[1:])

    def arrays(self) -> tuple[mx.array, ...]:
        return tuple(a for g in self.groups for a in (*g.matrix.arrays(), g.ids, g.places))


def grouped_experts(stacks: Mapping[tuple[int, ...], PackedMatrix]) -> GroupedExperts:
    """Stacks of experts by the numbers that those have in their layer."""
    count = sum(map(len, stacks))
    groups = []
    for ids, matrix in stacks.items():
        own = {expert: place for place, expert in enumerate(ids)}
        places = [own.get(expert, len(ids)) for expert in range(count)]
        groups.append(ExpertGroup(matrix, *(mx.array(a, dtype=mx.uint32) for a in (ids, places))))
    return GroupedExperts(tuple(groups))
