"""GGUF's blocks of 32 weights: kept packed in MLX's affine groups, or expanded to float32.

Both give the same numbers to the last bit. Formats: ggml-common.h of ggml.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]
BLOCK = 32  # weights that share a scale
_PIECE = 2048  # blocks expanded at a time: a quarter of a megabyte, which a core's cache holds


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


def affine_parts(
    name: str, raw: Bytes, fmt: AffineFormat
) -> tuple[npt.NDArray[np.uint32], Halves, Halves]:
    """Blocks [N, K / 32 * block_bytes] -> codes [N, K * bits / 32] uint32, scales, biases float16.

    Nibbles: a GGUF byte i holds weights i and i + 16 of its block, MLX wants neighbours.
    Raises CheckpointError, naming the tensor, for a scale that is not finite.
    """
    blocks = raw.reshape(raw.shape[0], -1, fmt.block_bytes)
    scales, biases = _scales(name, blocks, fmt)
    codes = _codes(blocks, fmt)
    if fmt.bits == 4:
        codes = np.bitwise_or(codes[..., 0::2], np.left_shift(codes[..., 1::2], 4, dtype=np.uint8))
    packed = np.ascontiguousarray(codes).reshape(raw.shape[0], -1).view(np.uint32)
    return packed, scales, biases


def expand(
    name: str, raw: Bytes, fmt: AffineFormat, out: npt.NDArray[np.float32], pool: Executor
) -> None:
    """Blocks [N, K / 32 * block_bytes] -> weights, into `out` [N, K], on all of the pool's threads.

    Raises CheckpointError, naming the tensor, for a scale that is not finite.
    """
    blocks, weights = raw.reshape(-1, fmt.block_bytes), out.reshape(-1, BLOCK)

    def piece(start: int) -> None:
        part, target = blocks[start : start + _PIECE], weights[start : start + _PIECE]
        scales, biases = _scales(name, part, fmt)
        np.copyto(target, _codes(part, fmt))
        target *= scales.astype(np.float32)[:, None]
        target += biases.astype(np.float32)[:, None]

    for _ in pool.map(piece, _starts(len(blocks))):
        pass  # raises what a piece raised


def _starts(num_blocks: int) -> Iterator[int]:
    return iter(range(0, num_blocks, _PIECE))


def _scales(name: str, blocks: Bytes, fmt: AffineFormat) -> tuple[Halves, Halves]:
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if fmt.has_min:
        biases = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            biases = scales * np.float16(-fmt.centre)
    if not np.isfinite(biases).all() or not np.isfinite(scales).all():
        raise CheckpointError(f"Tensor {name} holds a scale that is not finite. Fetch it again.")
    return scales, biases


def _codes(blocks: Bytes, fmt: AffineFormat) -> Bytes:
    """Codes [..., 32] of 0 and more, in the order of the weights."""
    codes = np.ascontiguousarray(blocks[..., 2 + 2 * fmt.has_min :])
    if fmt.bits == 8:
        return codes ^ np.uint8(0x80)  # two's complement to offset binary: q + 128
    ordered = np.empty((*codes.shape[:-1], BLOCK), np.uint8)
    np.bitwise_and(codes, 15, out=ordered[..., :16])
    np.right_shift(codes, 4, out=ordered[..., 16:])
    return ordered
