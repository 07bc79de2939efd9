"""Weight matrices as the models see them: dense, or packed in MLX's affine groups.

Both multiply rows of activations, `x @ W.T`, and give single rows of W (embeddings, shortlists).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

GROUP_SIZE = 32  # GGUF's Q4_0, Q4_1 and Q8_0 all share one scale among 32 weights


class Matrix(Protocol):
    """An [N, K] matrix of weights."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def arrays(self) -> tuple[mx.array, ...]:
        """What it is stored in."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""

    def rows(self, ids: mx.array) -> mx.array:
        """Rows `ids` [...] as activations [..., K]."""

    def take(self, ids: mx.array) -> "Matrix":
        """Rows `ids` [M] as a matrix of their own: packed like this one, or dense."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """weight: [N, K], float32 on CPU."""

    weight: mx.array

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.weight.shape
        return num_rows, num_columns

    def arrays(self) -> tuple[mx.array, ...]:
        return (self.weight,)

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.weight.T

    def rows(self, ids: mx.array) -> mx.array:
        return self.weight[ids]

    def take(self, ids: mx.array) -> "DenseMatrix":
        return DenseMatrix(self.weight[ids])


@dataclass(frozen=True, slots=True)
class AffineMatrix:
    """w = scale * code + bias in groups of 32 along K, as MLX's affine mode stores it.

    codes: [N, K * bits / 32] uint32; scales, biases: [N, K / 32] float.
    """

    codes: mx.array
    scales: mx.array
    biases: mx.array
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.scales.shape[0], self.scales.shape[1] * GROUP_SIZE

    def arrays(self) -> tuple[mx.array, ...]:
        return self.codes, self.scales, self.biases

    def __call__(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x, self.codes, self.scales, self.biases, True, GROUP_SIZE, self.bits
        )

    def rows(self, ids: mx.array) -> mx.array:
        # Half-precision scales would round each weight to half precision.
        scales, biases = (a[ids].astype(mx.float32) for a in (self.scales, self.biases))
        return mx.dequantize(self.codes[ids], scales, biases, GROUP_SIZE, self.bits)

    def take(self, ids: mx.array) -> "AffineMatrix":
        return AffineMatrix(self.codes[ids], self.scales[ids], self.biases[ids], self.bits)

    def dense(self, dtype: mx.Dtype = mx.float32) -> DenseMatrix:
        """The same weights expanded: scale * code + bias evaluated in `dtype`."""
        scales, biases = self.scales.astype(dtype), self.biases.astype(dtype)
        return DenseMatrix(mx.dequantize(self.codes, scales, biases, GROUP_SIZE, self.bits))


@dataclass(frozen=True, slots=True)
class JoinedMatrix:
    """Matrices of different kinds over the same activations as one, rows in order."""

    parts: tuple[Matrix, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def arrays(self) -> tuple[mx.array, ...]:
        return tuple(array for part in self.parts for array in part.arrays())

    def __call__(self, x: mx.array) -> mx.array:
        return mx.concatenate([part(x) for part in self.parts], axis=-1)

    def rows(self, ids: mx.array) -> mx.array:
        return mx.concatenate([part.rows(mx.arange(part.shape[0])) for part in self.parts])[ids]

    def take(self, ids: mx.array) -> DenseMatrix:
        return DenseMatrix(self.rows(ids))


def stack(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices over the same activations as one, rows in order: one product if they are of a kind.

    Each output is the same sum as before, so this changes no result. Matrices of different widths
    cannot be stacked: ValueError.
    """
    widths = {matrix.shape[1] for matrix in matrices}
    if len(widths) != 1:
        raise ValueError(f"cannot stack matrices of widths {sorted(widths)}")
    dense = [m for m in matrices if isinstance(m, DenseMatrix)]
    if len(dense) == len(matrices):
        return DenseMatrix(mx.concatenate([m.weight for m in dense]))
    packed = [m for m in matrices if isinstance(m, AffineMatrix)]
    if len(packed) == len(matrices) and len({m.bits for m in packed}) == 1:
        return AffineMatrix(
            codes=mx.concatenate([m.codes for m in packed]),
            scales=mx.concatenate([m.scales for m in packed]),
            biases=mx.concatenate([m.biases for m in packed]),
            bits=packed[0].bits,
        )
    return JoinedMatrix(tuple(matrices))
