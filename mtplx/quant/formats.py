"""Every block format of GGUF: its number in the file, its size, and how it unpacks.

Sizes and numbers: ggml.h and ggml-common.h of ggml.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from mtplx.quant import flat, grids, superblocks
from mtplx.quant.bits import Bytes, Floats, Unpacked

_PIECE = 1 << 16  # weights expanded at a time: a quarter of a megabyte, which a core's cache holds


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block format. number: of the type in a GGUF file. block: weights. num_bytes: of a block."""

    name: str
    number: int
    block: int
    num_bytes: int
    unpack: Callable[[Bytes], Unpacked]

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_bytes / self.block


BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    row.name: row
    for row in (
        BlockFormat("Q4_0", 2, 32, 18, flat.q4_0),
        BlockFormat("Q4_1", 3, 32, 20, flat.q4_1),
        BlockFormat("Q5_0", 6, 32, 22, flat.q5_0),
        BlockFormat("Q5_1", 7, 32, 24, flat.q5_1),
        BlockFormat("Q8_0", 8, 32, 34, flat.q8_0),
        BlockFormat("Q2_K", 10, 256, 84, superblocks.q2_k),
        BlockFormat("Q3_K", 11, 256, 110, superblocks.q3_k),
        BlockFormat("Q4_K", 12, 256, 144, superblocks.q4_k),
        BlockFormat("Q5_K", 13, 256, 176, superblocks.q5_k),
        BlockFormat("Q6_K", 14, 256, 210, superblocks.q6_k),
        BlockFormat("IQ2_XXS", 16, 256, 66, grids.iq2_xxs),
        BlockFormat("IQ2_XS", 17, 256, 74, grids.iq2_xs),
        BlockFormat("IQ3_XXS", 18, 256, 98, grids.iq3_xxs),
        BlockFormat("IQ1_S", 19, 256, 50, grids.iq1_s),
        BlockFormat("IQ4_NL", 20, 32, 18, flat.iq4_nl),
        BlockFormat("IQ3_S", 21, 256, 110, grids.iq3_s),
        BlockFormat("IQ2_S", 22, 256, 82, grids.iq2_s),
        BlockFormat("IQ4_XS", 23, 256, 136, superblocks.iq4_xs),
        BlockFormat("IQ1_M", 29, 256, 56, grids.iq1_m),
        BlockFormat("TQ1_0", 34, 256, 54, superblocks.tq1_0),
        BlockFormat("TQ2_0", 35, 256, 66, superblocks.tq2_0),
        BlockFormat("MXFP4", 39, 32, 17, flat.mxfp4),
        BlockFormat("NVFP4", 40, 64, 36, flat.nvfp4),
        BlockFormat("Q1_0", 41, 128, 18, flat.q1_0),
        BlockFormat("Q2_0", 42, 64, 18, flat.q2_0),
    )
}


def expand(fmt: BlockFormat, raw: Bytes, out: Floats, pool: Executor) -> bool:
    """Blocks [N, K / block * num_bytes] to weights in `out` [N, K], on all threads of the pool.

    Returns whether every weight is sure to be a finite number.
    """
    blocks, weights = raw.reshape(-1, fmt.num_bytes), out.reshape(-1, fmt.block)
    step = max(1, _PIECE // fmt.block)

    def piece(start: int) -> bool:
        part = np.ascontiguousarray(blocks[start : start + step])
        with np.errstate(over="ignore", invalid="ignore"):  # told by what is returned
            return _write(fmt.unpack(part), weights[start : start + step])

    return all(list(pool.map(piece, range(0, len(blocks), step))))


def _write(unpacked: Unpacked, out: Floats) -> bool:
    grouped = out.reshape(*unpacked.scales.shape, -1)
    np.copyto(grouped, unpacked.codes.reshape(grouped.shape))
    grouped *= unpacked.scales[..., None]
    largest = unpacked.scales * np.float32(128)  # no code is further from zero
    if unpacked.offsets is not None:
        grouped += unpacked.offsets[..., None]
        largest += unpacked.offsets
    return bool(np.isfinite(largest).all())
