"""Matrices that stay in memory as they are on disk, multiplied by our own kernels.

`PackedMatrix` is one as llama-type trunks see it; the modules stand in for mlx.nn's in a model of
mlx-lm's. No copy of the weights in another type is ever made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.errors import UnsupportedTensorError
from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import (
    embed,
    multiply,
    multiply_by_experts,
    multiply_by_sorted_experts,
)
from mtplx.kernels.source import Maker, metal


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """An [N, K] matrix (matrix.Matrix). dtype: of the rows it gives. maker: who runs kernels."""

    weight: PackedWeight
    dtype: mx.Dtype = mx.float32
    maker: Maker = metal

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.weight.shape
        return num_rows, num_columns

    def arrays(self) -> tuple[mx.array, ...]:
        planes = (self.weight.codes, self.weight.scales, self.weight.biases)
        return tuple(a for a in (*planes, self.weight.multiplier) if a is not None)

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        product = multiply(rows, self.weight, maker=self.maker)
        return product.reshape(*x.shape[:-1], -1)

    def rows(self, ids: mx.array) -> mx.array:
        flat = ids.reshape(-1).astype(mx.uint32)
        found = embed(flat, self.weight, self.dtype, maker=self.maker)
        return found.reshape(*ids.shape, -1)


class PackedLinear(nn.Module):
    """In place of nn.Linear. bias: [N] or None.

    order: [K], which element of the input stands where the matrix has its columns, for files that
    have them in another order than the model.
    """

    def __init__(
        self,
        matrix: PackedMatrix,
        bias: mx.array | None = None,
        order: mx.array | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix
        # Under names that begin with "_" they are no parameters: loading is over.
        self._order, self._bias = order, bias

    def __call__(self, x: mx.array) -> mx.array:
        if self._order is not None:
            x = x[..., self._order]
        product = self.matrix(x)
        return product if self._bias is None else product + self._bias.astype(product.dtype)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        others = [a for a in (self._order, self._bias) if a is not None]
        return [*self.matrix.arrays(), *others]


class PackedEmbedding(nn.Module):
    """In place of nn.Embedding."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix

    def __call__(self, ids: mx.array) -> mx.array:
        return self.matrix.rows(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """Its product with x, as an output head that is tied to it."""
        return self.matrix(x)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return list(self.matrix.arrays())


class PackedExperts(nn.Module):
    """In place of mlx-lm's SwitchLinear: a matrix of each expert, [E, N, K]."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrix = matrix

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [.., 1 or k, 1, K] and the experts [.., k] of its rows -> [.., k, 1, N]."""
        rows = mx.broadcast_to(x, (*indices.shape, 1, x.shape[-1])).reshape(-1, x.shape[-1])
        experts, weight, maker = indices.reshape(-1), self.matrix.weight, self.matrix.maker
        if sorted_indices:
            below = experts[None] < mx.arange(weight.shape[0] + 1)[:, None]
            starts = mx.sum(below, axis=1).astype(mx.uint32)
            product = multiply_by_sorted_experts(rows, weight, starts, maker=maker)
        else:
            product = multiply_by_experts(rows, weight, experts.astype(mx.uint32), maker=maker)
        return product.reshape(*indices.shape, 1, -1)

    def held(self) -> list[mx.array]:
        """Every array of the module."""
        return list(self.matrix.arrays())


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A matrix for one module of a model. order: as PackedLinear's."""

    matrix: PackedMatrix
    order: mx.array | None = None


class PackedWeights:
    """Packed matrices on their way into a model, whose loading knows dense ones.

    Each is stood in for by a matrix of zeros that is never computed: whatever is renamed on the
    way, the stand-in is found again and the matrix put in its place.
    """

    def __init__(self) -> None:
        self._parts: dict[int, tuple[mx.array, PackedPart]] = {}

    def stand_in(self, part: PackedPart) -> mx.array:
        """A matrix for a name to have in the meantime."""
        zeros = mx.zeros(part.matrix.weight.shape)
        self._parts[id(zeros)] = (zeros, part)
        return zeros

    def fill(self, model: Any, weights: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
        """Put the matrices and all other weights into a model, strictly."""
        from mtplx.models.mlx_lm_model import fill

        fill(model, self.put(model, weights), config)

    def put(self, model: Any, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Put the matrices in their places; returns the weights that are still to be filled in.

        Raises UnsupportedTensorError for a matrix that has no place as it is.
        """
        found = {name: self._parts[id(a)][1] for name, a in weights.items() if id(a) in self._parts}
        if len(found) != len(self._parts):
            raise UnsupportedTensorError(
                f"{len(self._parts) - len(found)} packed matrices would have to be put together "
                "from others for this model, which is not known for them."
            )
        rest = {name: array for name, array in weights.items() if name not in found}
        modules = dict(model.named_modules())
        for name, part in found.items():
            path = name.removesuffix(".weight")
            bias = rest.pop(f"{path}.bias", None)
            _replace(model, path, _module(path, modules.get(path), part, bias))
        return rest


def _module(path: str, place: Any, part: PackedPart, bias: mx.array | None) -> nn.Module:
    shape = part.matrix.weight.shape
    if place is None or not hasattr(place, "weight") or place.weight.shape != shape:
        raise UnsupportedTensorError(
            f"{path} is no matrix of {list(shape)} in this model, as its packed weights are."
        )
    if isinstance(place, nn.Embedding):
        return PackedEmbedding(part.matrix)
    if isinstance(place, nn.Linear):
        return PackedLinear(part.matrix, bias, part.order)
    if len(shape) == 3 and bias is None and part.order is None:
        return PackedExperts(part.matrix)
    raise UnsupportedTensorError(f"{path} is of a kind that has no packed weights here.")


def held_arrays(model: Any) -> list[mx.array]:
    """What the packed modules of a model hold, which are not among its parameters."""
    found = [
        m for m in model.modules() if isinstance(m, PackedLinear | PackedEmbedding | PackedExperts)
    ]
    return [array for module in found for array in module.held()]


def _replace(model: Any, path: str, module: nn.Module) -> None:
    *parents, last = path.split(".")
    at = model
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at[name]
    if isinstance(at, list):
        at[int(last)] = module
    else:
        setattr(at, last, module)
