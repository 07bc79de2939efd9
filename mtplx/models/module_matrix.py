"""Layers of mlx.nn as matrices: an embedding, or an output layer, dense or packed."""

import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.models.matrix import DenseMatrix, Matrix
from mtplx.models.packed import PackedEmbedding, PackedLinear


@dataclass(frozen=True, slots=True)
class ModuleMatrix:
    """The weight [N, K] of an Embedding or a Linear, quantised or not (matrix.Matrix)."""

    module: Any

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.module.weight.shape
        if "scales" in self.module:
            num_columns = self.module.scales.shape[-1] * self.module.group_size
        return num_rows, num_columns

    def arrays(self) -> tuple[mx.array, ...]:
        kinds = ("weight", "scales", "biases")
        return tuple(self.module[kind] for kind in kinds if kind in self.module)

    def __call__(self, x: mx.array) -> mx.array:
        is_table = isinstance(self.module, nn.Embedding | nn.QuantizedEmbedding)
        product: mx.array = self.module.as_linear(x) if is_table else self.module(x)
        return product

    def rows(self, ids: mx.array) -> mx.array:
        if "scales" not in self.module:
            dense: mx.array = self.module.weight[ids]
            return dense
        biases = self.module.biases if "biases" in self.module else None
        return mx.dequantize(
            self.module.weight[ids],
            self.module.scales[ids],
            None if biases is None else biases[ids],
            group_size=self.module.group_size,
            bits=self.module.bits,
            mode=self.module.mode,
        )

    def take(self, ids: mx.array) -> Matrix:
        # On a CPU a BLAS over dense rows is many times faster than a product with packed ones.
        if "scales" not in self.module or mx.default_device() == mx.Device(mx.cpu):
            return DenseMatrix(self.rows(ids))
        return ModuleMatrix(with_rows(self.module, ids))


def with_rows(module: Any, ids: mx.array) -> Any:
    """A module like this one, of some rows of its matrix alone."""
    few = copy.copy(module)
    for name in ("weight", "scales", "biases", "bias"):
        if name in few:
            few[name] = few[name][ids]
    return few


def matrix_of(module: Any) -> Matrix:
    """The matrix of an Embedding or a Linear, whatever it is stored in."""
    if isinstance(module, PackedLinear):
        return module.part.matrix
    if isinstance(module, PackedEmbedding):
        return module.matrix
    return ModuleMatrix(module)
