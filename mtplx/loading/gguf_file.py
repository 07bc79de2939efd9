"""GGUF files as they are on disk: memory-mapped tensors, checked, to matrices.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `mx.load` is not used: it
drops tensors of types it does not know and decodes some wrongly, both in silence.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.gguf_blocks import AFFINE_FORMATS, affine_parts, expand
from mtplx.models.matrix import AffineMatrix, DenseMatrix, Matrix, stack

if TYPE_CHECKING:
    import gguf


def open_gguf(path: Path) -> "gguf.GGUFReader":
    """The file's header and tensor table; data stays mapped. CheckpointError if it is damaged."""
    from mtplx.loading.gguf_metadata import QuickReader

    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'.")
    try:
        reader = QuickReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        if "GGMLQuantizationType" in str(error):
            raise UnsupportedTensorError(
                f"{path} holds a tensor of a type that is newer than this program or damaged "
                f"({error}). Readable: {', '.join(READABLE)}."
            ) from error
        raise CheckpointError(
            f"{path} is damaged or cut short ({path.stat().st_size:,} bytes): {error}. "
            "Fetch it again."
        ) from error
    promised = int(reader.fields["GGUF.tensor_count"].parts[-1][0])
    if len(reader.tensors) != promised:
        raise CheckpointError(
            f"{path} promises {promised} tensors and holds {len(reader.tensors)}. Fetch it again."
        )
    return reader


DENSE_FORMATS = ("F32", "F16", "BF16")
READABLE = (*DENSE_FORMATS, *AFFINE_FORMATS)
_MAX_THREADS = 8


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
    """Tensors of one file by name, as matrices or vectors. `packed` keeps blocks packed.

    Each raises CheckpointError for a tensor that is missing or not of the shape asked for.
    """

    by_name: Mapping[str, "gguf.ReaderTensor"]
    packed: bool
    unread: set[str]  # names that nothing has asked for yet
    pool: Executor

    def _find(self, name: str, shape: tuple[int, ...]) -> "gguf.ReaderTensor":
        if name not in self.by_name:
            raise CheckpointError(f"The file has no tensor {name}, which this architecture needs.")
        tensor = self.by_name[name]
        found = tuple(int(size) for size in reversed(tensor.shape))
        if found != shape:
            raise CheckpointError(f"Tensor {name} is {found}, the metadata asks for {shape}.")
        self.unread.discard(name)
        return tensor

    def vector(self, name: str, size: int) -> mx.array:
        """A dense tensor [size] as float32."""
        tensor = self._find(name, (size,))
        if tensor.tensor_type.name not in DENSE_FORMATS:
            raise UnsupportedTensorError(
                f"Tensor {name} is of type {tensor.tensor_type.name}; a vector must be one of "
                f"{', '.join(DENSE_FORMATS)}."
            )
        return _dense(tensor)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A weight matrix [rows, columns]."""
        return self.joined([Rows(name, rows)], columns)

    def joined(self, parts: Sequence[Rows], columns: int) -> Matrix:
        """Tensors of `columns` columns as one matrix, their rows in order."""
        found = [self._find(part.name, (part.num_rows, columns)) for part in parts]
        kinds = {tensor.tensor_type.name for tensor in found}
        if self.packed or not kinds <= AFFINE_FORMATS.keys():
            return stack([self._alone(*pair) for pair in zip(parts, found, strict=True)])
        weight = mx.zeros((sum(part.num_rows for part in parts), columns))
        mx.eval(weight)
        rows = np.array(weight, copy=False)  # the same memory, written before anybody reads it
        start = 0
        for part, tensor in zip(parts, found, strict=True):
            fmt = AFFINE_FORMATS[tensor.tensor_type.name]
            target = rows[start : start + part.num_rows]
            expand(part.name, tensor.data[part.order], fmt, target, self.pool)
            start += part.num_rows
        return DenseMatrix(weight)

    def _alone(self, part: Rows, tensor: "gguf.ReaderTensor") -> Matrix:
        """One tensor as it is stored, or as float32 if it is not in blocks."""
        kind = tensor.tensor_type.name
        if kind in DENSE_FORMATS:
            return DenseMatrix(_dense(tensor, part.order))
        if kind not in AFFINE_FORMATS:
            raise UnsupportedTensorError(
                f"Tensor {part.name} is of type {kind}, which is not readable yet. "
                f"Readable: {', '.join(READABLE)}."
            )
        fmt = AFFINE_FORMATS[kind]
        parts = affine_parts(part.name, tensor.data[part.order], fmt)
        codes, scales, biases = (mx.array(array) for array in parts)
        matrix = AffineMatrix(codes, scales, biases, fmt.bits)
        return matrix if self.packed else matrix.dense()


def _dense(
    tensor: "gguf.ReaderTensor", order: npt.NDArray[np.int64] | slice = slice(None)
) -> mx.array:
    stored = np.ascontiguousarray(tensor.data[order])
    if tensor.tensor_type.name == "BF16":
        return mx.array(stored.view(np.uint16)).view(mx.bfloat16).astype(mx.float32)
    return mx.array(stored).astype(mx.float32)


def gguf_tensors(reader: "gguf.GGUFReader", *, packed: bool) -> GgufTensors:
    """The tensors of an open file; every type is checked before any is read."""
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    unknown = {
        t.tensor_type.name: t.name for t in reader.tensors if t.tensor_type.name not in READABLE
    }
    if unknown:
        found = "; ".join(f"{kind} (first in {name})" for kind, name in unknown.items())
        raise UnsupportedTensorError(
            f"The file holds tensor types that are not readable yet: {found}. "
            f"Readable: {', '.join(READABLE)}."
        )
    return GgufTensors(by_name, packed, set(by_name), ThreadPoolExecutor(_num_threads()))


def _num_threads() -> int:
    """Cores that this process may use, as far as memory can feed them."""
    if sys.platform == "linux":
        return min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(_MAX_THREADS, os.cpu_count() or 1)
