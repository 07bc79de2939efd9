"""A GGUF model's tensors as matrices and vectors of weights.

On a GPU blocks and matrices of 16 bits stay as they are; on a CPU everything is expanded to
float32, straight from the mapped file and on all cores.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.kernels.packing import PART, gguf_weight
from mtplx.kernels.source import Maker, metal
from mtplx.kernels.tiling import Tiling
from mtplx.loading.gguf_affine import AFFINE_FORMATS, affine_parts
from mtplx.loading.gguf_file import DENSE_FORMATS, READABLE, GgufFile, GgufTensor
from mtplx.models.matrix import AffineMatrix, DenseMatrix, Matrix, stack
from mtplx.models.packed_matrix import PackedMatrix
from mtplx.quant.bits import Bytes, Floats
from mtplx.quant.formats import BLOCK_FORMATS, expand, holds_numbers

_MAX_THREADS = 8


def stays_on_gpu(kind: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this type is kept as it is on a GPU: blocks, and matrices of 16 bits."""
    halves = kind in ("F16", "BF16") and len(shape) > 1 and shape[-1] % PART == 0
    return kind in BLOCK_FORMATS or halves


def rows_in_half_split_order(num_heads: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Which stored row each row of q or k comes from, for rotary halves instead of pairs.

    llama.cpp stores the rows of a head with the two halves interleaved (0, hd/2, 1, hd/2 + 1, …).
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor as some rows of a matrix.

    rotary_heads: its rows are those of so many heads of q or k, and are put in half-split order.
    """

    name: str
    num_rows: int
    rotary_heads: int | None = None

    @property
    def order(self) -> npt.NDArray[np.int64] | slice:
        """Which stored row each row is."""
        if self.rotary_heads is None:
            return slice(None)
        return rows_in_half_split_order(self.rotary_heads, self.num_rows)


@dataclass(frozen=True, slots=True)
class GgufTensors:
    """Tensors of a model by name, as matrices, vectors or arrays.

    packed: blocks and matrices of 16 bits stay as they are; blocks of 32 that MLX has a packing for
    are multiplied by its kernels, the others by ours. maker: who runs ours. tiling: which tiles
    they take.
    Each raises CheckpointError for a tensor that is missing, not of the shape asked for, or
    damaged.
    """

    by_name: Mapping[str, GgufTensor]
    packed: bool
    unread: set[str]  # names that nothing has asked for yet
    pool: Executor
    maker: Maker = metal
    tiling: Tiling | None = None

    def find(self, name: str, shape: tuple[int, ...] | None = None) -> GgufTensor:
        """A tensor as it is stored, which counts as read."""
        if name not in self.by_name:
            raise CheckpointError(f"The file has no tensor {name}, which this architecture needs.")
        tensor = self.by_name[name]
        if shape is not None and tensor.shape != shape:
            raise CheckpointError(
                f"Tensor {name} is {tensor.shape}, the metadata asks for {shape}."
            )
        self.unread.discard(name)
        return tensor

    def vector(self, name: str, size: int) -> mx.array:
        """A dense tensor [size] as float32."""
        tensor = self.find(name, (size,))
        if tensor.type not in DENSE_FORMATS:
            raise UnsupportedTensorError(
                f"Tensor {name} is of type {tensor.type}; a vector must be one of "
                f"{', '.join(DENSE_FORMATS)}."
            )
        return self.array(name)

    def array(self, name: str) -> mx.array:
        """A tensor of any shape and type as float32."""
        tensor = self.find(name)
        expanded = mx.zeros(tensor.shape)
        mx.eval(expanded)
        # The same memory, written before anybody reads it.
        self._expand(tensor, slice(None), np.array(expanded, copy=False))
        return expanded

    def factor(self, name: str) -> mx.array | None:
        """What a file may have beside a tensor, NVFP4 most of all: a factor [] of all of it.

        The factor of the activations that stands beside it is not meant for weights.
        """
        base = name.removesuffix(".weight")
        self.unread.discard(f"{base}.input_scale")
        if f"{base}.scale" not in self.by_name:
            return None
        factor = self.array(f"{base}.scale")
        if factor.size != 1 or not mx.isfinite(factor).all().item():
            raise CheckpointError(f"{base}.scale is no single finite number. Fetch it again.")
        return factor.reshape(())

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A weight matrix [rows, columns]."""
        return self.joined([Rows(name, rows)], columns)

    def joined(self, parts: Sequence[Rows], columns: int) -> Matrix:
        """Tensors of `columns` columns as one matrix, their rows in order."""
        found = [self.find(part.name, (part.num_rows, columns)) for part in parts]
        if self.packed and any(stays_on_gpu(tensor.type, tensor.shape) for tensor in found):
            return self._joined_packed(parts, found)
        weight = mx.zeros((sum(part.num_rows for part in parts), columns))
        mx.eval(weight)
        rows, start = np.array(weight, copy=False), 0
        for part, tensor in zip(parts, found, strict=True):
            self._expand(tensor, part.order, rows[start : start + part.num_rows])
            factor = self.factor(part.name)
            if factor is not None:
                rows[start : start + part.num_rows] *= np.array(factor)
            start += part.num_rows
        return DenseMatrix(weight)

    def _joined_packed(self, parts: Sequence[Rows], found: Sequence[GgufTensor]) -> Matrix:
        """What stays as it is; one product where all are of one type of our own kernels'."""
        kinds = {tensor.type for tensor in found}
        factors = [self.factor(part.name) for part in parts]
        has_factor = any(factor is not None for factor in factors)
        alike = len(kinds) == 1 and stays_on_gpu(found[0].type, found[0].shape)
        if alike and not kinds & AFFINE_FORMATS.keys() and not has_factor:
            rows = [t.rows[part.order] for part, t in zip(parts, found, strict=True)]
            return self._kernel_matrix(found[0], np.concatenate(rows), None)
        return stack([self._alone(*each) for each in zip(parts, found, factors, strict=True)])

    def _alone(self, part: Rows, tensor: GgufTensor, factor: mx.array | None) -> Matrix:
        if not stays_on_gpu(tensor.type, tensor.shape):
            weight = mx.zeros(tensor.shape)
            mx.eval(weight)
            self._expand(tensor, part.order, np.array(weight, copy=False))
            return DenseMatrix(weight if factor is None else weight * factor)
        if tensor.type not in AFFINE_FORMATS or factor is not None:
            return self._kernel_matrix(tensor, tensor.rows[part.order], factor)
        fmt = AFFINE_FORMATS[tensor.type]
        codes, *halves = affine_parts(part.name, tensor.rows[part.order], fmt)
        # Activations are float32 here, and MLX would widen half-precision scales in every product.
        scales, biases = (mx.array(half.astype(np.float32)) for half in halves)
        return AffineMatrix(mx.array(codes), scales, biases, fmt.bits)

    def kernel_matrix(self, name: str, row_order: mx.array | None = None) -> PackedMatrix:
        """A tensor as it is stored, [N, K] or one for each expert [E, N, K].

        row_order: [N], which stored row each row is.
        """
        tensor = self.find(name)
        order = slice(None) if row_order is None else np.array(row_order)
        return self._kernel_matrix(tensor, tensor.rows[order], self.factor(name))

    def _kernel_matrix(
        self, tensor: GgufTensor, rows: Bytes, factor: mx.array | None
    ) -> PackedMatrix:
        """A matrix that stays as it is on disk, for our own kernels. Its scales are looked at."""
        self._check_scales(tensor)
        weight = gguf_weight(tensor.type, mx.array(rows), tensor.shape[-1], factor)
        return PackedMatrix(weight, maker=self.maker, tiling=self.tiling)

    def _check_scales(self, tensor: GgufTensor) -> None:
        """What a kernel would read without a word: a scale that is no number."""
        block = BLOCK_FORMATS.get(tensor.type)
        if block is not None and not holds_numbers(block, tensor.data):
            raise _not_finite(tensor)

    def _expand(
        self, tensor: GgufTensor, order: npt.NDArray[np.int64] | slice, out: Floats
    ) -> None:
        rows = tensor.rows[order]
        if tensor.type in DENSE_FORMATS:
            _copy(tensor.type, rows, out)
            # A norm or a bias; matrices are not looked through, which would take as long again.
            if out.ndim < 2 and not np.isfinite(out).all():
                raise CheckpointError(f"{tensor.name} holds what is no number. Fetch it again.")
        elif not expand(BLOCK_FORMATS[tensor.type], rows, out, self.pool):
            raise _not_finite(tensor)


def _not_finite(tensor: GgufTensor) -> CheckpointError:
    return CheckpointError(
        f"Tensor {tensor.name} holds a scale that is not finite. Fetch it again."
    )


def _copy(kind: str, rows: Bytes, out: Floats) -> None:
    stored = np.ascontiguousarray(rows)
    if kind == "BF16":
        np.left_shift(stored.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(out, stored.view(np.float16 if kind == "F16" else np.float32))


def gguf_tensors(
    file: GgufFile, *, packed: bool, maker: Maker = metal, tiling: Tiling | None = None
) -> GgufTensors:
    """The tensors of an open file; their types are checked before any is read."""
    odd = {tensor.type: tensor.name for tensor in file.tensors.values()}
    found = "; ".join(f"{kind} (in {odd[kind]})" for kind in odd if kind not in READABLE)
    if found:
        raise UnsupportedTensorError(
            f"{file.path} holds tensors of types that no weights are stored in: {found}. "
            f"Readable: {', '.join(READABLE)}."
        )
    pool = ThreadPoolExecutor(_num_threads())
    return GgufTensors(file.tensors, packed, set(file.tensors), pool, maker, tiling)


def _num_threads() -> int:
    """Cores that this process may use, as far as memory can feed them."""
    if sys.platform == "linux":
        return min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(_MAX_THREADS, os.cpu_count() or 1)
