"""GGUF files as they are on disk: memory-mapped tensors, checked, to matrices.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `mx.load` is not used: it
drops tensors of types it does not know and decodes some wrongly, both in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.models.matrix import AffineMatrix, DenseMatrix, Matrix

if TYPE_CHECKING:
    import gguf

Bytes = npt.NDArray[np.uint8]


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


@dataclass(frozen=True, slots=True)
class AffineFormat:
    """A GGUF block format of 32 weights that MLX's affine groups hold without loss.

    A block is `d` (float16), for some formats `m` (float16), and 32 codes. The weight is
    d * code + m, or d * (code - centre) where there is no m: -centre * d is exact in float16
    because the centres are powers of two (it could only overflow, and that is checked).
    """

    bits: int
    has_min: bool
    centre: int

    @property
    def block_bytes(self) -> int:
        return 2 + 2 * self.has_min + 4 * self.bits


AFFINE_FORMATS: Mapping[str, AffineFormat] = {
    "Q4_0": AffineFormat(bits=4, has_min=False, centre=8),
    "Q4_1": AffineFormat(bits=4, has_min=True, centre=0),
    "Q8_0": AffineFormat(bits=8, has_min=False, centre=128),
}
DENSE_FORMATS = ("F32", "F16", "BF16")
READABLE = (*DENSE_FORMATS, *AFFINE_FORMATS)


def affine_parts(
    name: str, raw: Bytes, fmt: AffineFormat
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """Blocks [N, K / 32 * block_bytes] -> codes [N, K * bits / 32] uint32, scales, biases float16.

    Nibbles: a GGUF byte i holds weights i and i + 16 of its block, MLX wants neighbours.
    """
    blocks = raw.reshape(raw.shape[0], -1, fmt.block_bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if fmt.has_min:
        biases = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    else:
        with np.errstate(over="ignore"):
            biases = scales * np.float16(-fmt.centre)
    if not np.isfinite(biases).all() or not np.isfinite(scales).all():
        raise CheckpointError(f"Tensor {name} holds a scale that is not finite. Fetch it again.")
    codes = blocks[..., 2 + 2 * fmt.has_min :]
    if fmt.bits == 4:
        low, high = codes & 15, codes >> 4
        ordered = np.concatenate([low, high], axis=-1)
        codes = ordered[..., 0::2] | (ordered[..., 1::2] << 4)
    else:
        codes = codes ^ np.uint8(0x80)  # two's complement to offset binary: q + 128
    packed = np.ascontiguousarray(codes).reshape(raw.shape[0], -1).view(np.uint32)
    return packed, scales, biases


def rows_in_half_split_order(num_heads: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Which stored row each row of q or k comes from, for rotary halves instead of pairs.

    llama.cpp stores the rows of a head with the two halves interleaved (0, hd/2, 1, hd/2 + 1, …).
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True, slots=True)
class GgufTensors:
    """Tensors of one file by name, as matrices or vectors. `packed` keeps blocks packed.

    Each raises CheckpointError for a tensor that is missing or not of the shape asked for.
    """

    by_name: Mapping[str, "gguf.ReaderTensor"]
    packed: bool
    unread: set[str]  # names that nothing has asked for yet

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

    def matrix(
        self, name: str, rows: int, columns: int, *, rotary_heads: int | None = None
    ) -> Matrix:
        """A weight matrix [rows, columns]. rotary_heads: its rows are those of so many heads of q
        or k, and are put in half-split order."""
        tensor = self._find(name, (rows, columns))
        order = None if rotary_heads is None else rows_in_half_split_order(rotary_heads, rows)
        kind = tensor.tensor_type.name
        if kind in DENSE_FORMATS:
            weight = _dense(tensor)
            return DenseMatrix(weight if order is None else weight[mx.array(order)])
        if kind not in AFFINE_FORMATS:
            raise UnsupportedTensorError(
                f"Tensor {name} is of type {kind}, which is not readable yet. "
                f"Readable: {', '.join(READABLE)}."
            )
        fmt = AFFINE_FORMATS[kind]
        raw = tensor.data if order is None else tensor.data[order]
        codes, scales, biases = (mx.array(part) for part in affine_parts(name, raw, fmt))
        matrix = AffineMatrix(codes, scales, biases, fmt.bits)
        return matrix if self.packed else matrix.dense()


def _dense(tensor: "gguf.ReaderTensor") -> mx.array:
    if tensor.tensor_type.name == "BF16":
        halves = mx.array(np.ascontiguousarray(tensor.data).view(np.uint16))
        return halves.view(mx.bfloat16).astype(mx.float32)
    return mx.array(np.ascontiguousarray(tensor.data)).astype(mx.float32)


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
    return GgufTensors(by_name, packed, set(by_name))
