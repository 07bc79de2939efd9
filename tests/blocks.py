"""Random blocks of quantised weights, and what independent code makes of them."""

import struct
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from mtplx.quant.formats import BlockFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Where the high bytes of a format's float16 numbers are. IQ1_M's one is spread over four words.
_HIGH_BYTES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (1, 3)),
    **dict.fromkeys(("MXFP4", "NVFP4"), ()),
    "Q2_K": (81, 83),
    "Q3_K": (109,),
    "Q6_K": (209,),
    "TQ1_0": (53,),
    "TQ2_0": (65,),
    "IQ1_M": (55,),
}


def valid_blocks(fmt: BlockFormat, count: int, seed: int = 0) -> Bytes:
    """[count, num_bytes] with every bit at random, but for scales, which are numbers below 2."""
    raw = np.random.default_rng([seed, fmt.number]).integers(
        0, 256, (count, fmt.num_bytes), dtype=np.uint8
    )
    for place in _HIGH_BYTES.get(fmt.name, (1,)):
        raw[:, place] &= 0xBF
    if fmt.name == "MXFP4":
        raw[:, 0] = np.minimum(raw[:, 0], 240)
    if fmt.name == "NVFP4":
        scales = raw[:, :4]
        scales[scales & 0x7F == 0x7F] = 1
    return raw


def weights_of(fmt: BlockFormat, blocks: Bytes) -> Floats:
    """[n, block] float32 by the `gguf` package, or one weight after the other where it has none."""
    if fmt.name == "Q1_0":
        return _by_weight(blocks, lambda data, j: 2 * (data[j // 8] >> (j % 8) & 1) - 1, 128)
    if fmt.name == "Q2_0":
        return _by_weight(blocks, lambda data, j: (data[j // 4] >> (2 * (j % 4)) & 3) - 1, 64)
    weights = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[fmt.name])
    return np.asarray(weights, np.float32)


def _by_weight(blocks: Bytes, code: "object", count: int) -> Floats:
    rows = []
    for block in blocks.tolist():
        (scale,) = struct.unpack("<e", bytes(block[:2]))
        rows.append([scale * code(block[2:], j) for j in range(count)])  # type: ignore[operator]
    return np.array(rows, np.float32)


def write_typed(path: Path, name: str, raw: Bytes, shape: tuple[int, ...], number: int) -> Path:
    """A GGUF file of one tensor with a type of this number, which no library has to know."""
    text, label = b"general.architecture", name.encode()
    metadata = struct.pack("<Q", len(text)) + text + struct.pack("<IQ", 8, 5) + b"llama"
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    table = struct.pack("<Q", len(label)) + label + dims + struct.pack("<IQ", number, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + metadata + table
    path.write_bytes(head + bytes(-len(head) % 32) + raw.tobytes())
    return path
