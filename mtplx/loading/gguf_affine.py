"""GGUF's blocks of 32 weights that MLX's affine groups hold without loss.

What MLX makes of them is what `quant` expands them to, to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.errors import CheckpointError
from mtplx.quant.bits import Bytes

Halves = npt.NDArray[np.float16]
BLOCK = 32  # weights that share a scale


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
