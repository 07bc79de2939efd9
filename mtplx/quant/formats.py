"""Every block format of GGUF: its number in the file, its size, and how it unpacks.

Sizes and numbers: ggml.h and ggml-common.h of ggml.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from mtplx.quant import flat, grids, superblocks
from mtplx.quant.bits import Array, Bytes, Floats, Unpacked

_PIECE = 1 << 16  # weights expanded at a time: a quarter of a megabyte, which a core's cache holds


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format. number: of the type in a GGUF file. block: weights. num_bytes: of a block.

    no_numbers: tells of blocks [n, num_bytes] which have a scale or minimum that is no number, by
    a few of their bytes.
    """

    name: str
    number: int
    block: int
    num_bytes: int
    unpack: Callable[[Bytes], Unpacked]
    no_numbers: Callable[[Bytes], Array]


def _halves(*places: int) -> Callable[[Bytes], Array]:
    """float16 numbers at these bytes: all bits of the exponent are set in those that are none."""
    high_bytes = [place + 1 for place in places]
    return lambda blocks: (blocks[:, high_bytes] & 0x7C) == 0x7C


def _scattered(blocks: Bytes) -> Array:
    """IQ1_M's one, whose exponent is in the top nibbles of two words."""
    are_none: Array = ((blocks[:, 55] & 0x70) == 0x70) & ((blocks[:, 53] & 0xC0) == 0xC0)
    return are_none


_FIRST, _FIRST_TWO = _halves(0), _halves(0, 2)

BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    row.name: row
    for row in (
        BlockFormat("Q4_0", 2, 32, 18, flat.q4_0, _FIRST),
        BlockFormat("Q4_1", 3, 32, 20, flat.q4_1, _FIRST_TWO),
        BlockFormat("Q5_0", 6, 32, 22, flat.q5_0, _FIRST),
        BlockFormat("Q5_1", 7, 32, 24, flat.q5_1, _FIRST_TWO),
        BlockFormat("Q8_0", 8, 32, 34, flat.q8_0, _FIRST),
        BlockFormat("Q2_K", 10, 256, 84, superblocks.q2_k, _halves(80, 82)),
        BlockFormat("Q3_K", 11, 256, 110, superblocks.q3_k, _halves(108)),
        BlockFormat("Q4_K", 12, 256, 144, superblocks.q4_k, _FIRST_TWO),
        BlockFormat("Q5_K", 13, 256, 176, superblocks.q5_k, _FIRST_TWO),
        BlockFormat("Q6_K", 14, 256, 210, superblocks.q6_k, _halves(208)),
        BlockFormat("IQ2_XXS", 16, 256, 66, grids.iq2_xxs, _FIRST),
        BlockFormat("IQ2_XS", 17, 256, 74, grids.iq2_xs, _FIRST),
        BlockFormat("IQ3_XXS", 18, 256, 98, grids.iq3_xxs, _FIRST),
        BlockFormat("IQ1_S", 19, 256, 50, grids.iq1_s, _FIRST),
        BlockFormat("IQ4_NL", 20, 32, 18, flat.iq4_nl, _FIRST),
        BlockFormat("IQ3_S", 21, 256, 110, grids.iq3_s, _FIRST),
        BlockFormat("IQ2_S", 22, 256, 82, grids.iq2_s, _FIRST),
        BlockFormat("IQ4_XS", 23, 256, 136, superblocks.iq4_xs, _FIRST),
        BlockFormat("IQ1_M", 29, 256, 56, grids.iq1_m, _scattered),
        BlockFormat("TQ1_0", 34, 256, 54, superblocks.tq1_0, _halves(52)),
        BlockFormat("TQ2_0", 35, 256, 66, superblocks.tq2_0, _halves(64)),
        BlockFormat("MXFP4", 39, 32, 17, flat.mxfp4, lambda blocks: blocks[:, 0] == 0xFF),
        BlockFormat("NVFP4", 40, 64, 36, flat.nvfp4, lambda blocks: (blocks[:, :4] & 0x7F) == 0x7F),
        BlockFormat("Q1_0", 41, 128, 18, flat.q1_0, _FIRST),
        BlockFormat("Q2_0", 42, 64, 18, flat.q2_0, _FIRST),
    )
}


def expand(fmt: BlockFormat, raw: Bytes, out: Floats, pool: Executor) -> bool:
    """Blocks [N, K / block * num_bytes] to weights in `out` [N, K], on all threads of the pool.

    Returns whether every weight is sure to be a finite number.
    """
    weights = out.reshape(-1, fmt.block)
    step = _step(fmt)

    def piece(index: int, blocks: Bytes) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):  # told by what is returned
            return _write(
                fmt.unpack(np.ascontiguousarray(blocks)), weights[index * step : (index + 1) * step]
            )

    parts = list(pieces(fmt, raw))
    return all(list(pool.map(piece, range(len(parts)), parts)))


def pieces(fmt: BlockFormat, raw: Bytes) -> Iterator[Bytes]:
    """The blocks of a tensor [n, num_bytes], as many at a time as a core's cache holds."""
    blocks, step = raw.reshape(-1, fmt.num_bytes), _step(fmt)
    for start in range(0, len(blocks), step):
        yield blocks[start : start + step]


def _step(fmt: BlockFormat) -> int:
    return max(1, _PIECE // fmt.block)


def _write(unpacked: Unpacked, out: Floats) -> bool:
    grouped = out.reshape(*unpacked.scales.shape, -1)
    np.copyto(grouped, unpacked.codes.reshape(grouped.shape))
    grouped *= unpacked.scales[..., None]
    if unpacked.offsets is not None:
        grouped += unpacked.offsets[..., None]
    return _is_finite(unpacked)


def _is_finite(unpacked: Unpacked) -> bool:
    """Whether every weight is sure to be a finite number: no code is beyond 128."""
    largest = unpacked.scales * np.float32(128)
    if unpacked.offsets is not None:
        largest = largest + unpacked.offsets
    return bool(np.isfinite(largest).all())


def holds_numbers(fmt: BlockFormat, raw: Bytes) -> bool:
    """Whether every scale and minimum of a tensor's blocks is a number, without unpacking them."""
    return not any(fmt.no_numbers(blocks).any() for blocks in pieces(fmt, raw))
