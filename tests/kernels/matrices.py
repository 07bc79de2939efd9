"""Random packed matrices of every format that kernels read, with the weights they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx.kernels.packing import (
    GGUF_PACKINGS,
    PackedWeight,
    affine_weight,
    fp8_weight,
    gguf_weight,
    mxfp4_weight,
    mxfp8_weight,
    nvfp4_weight,
)
from mtplx.quant.formats import BLOCK_FORMATS
from tests.blocks import valid_blocks, weights_of
from tests.metal_host.dtypes import to_numpy

Floats = NDArray[np.float32]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True, slots=True)
class Matrix:
    """packed: as on disk. weights: [N, K], by code that is independent of the kernels.

    num_bytes: of all planes. exact: whether decoding is to give the weights to the last bit.
    """

    packed: PackedWeight
    weights: Floats
    num_bytes: int
    exact: bool = True


def gguf_matrix(name: str, rows: int, columns: int) -> Matrix:
    """Blocks with every bit at random, the exponents within what a model has."""
    fmt = BLOCK_FORMATS[name]
    raw = valid_blocks(fmt, rows * columns // fmt.block, seed=1)
    if name == "MXFP4":
        raw[:, 0] = 118 + raw[:, 0] % 8
    weights = weights_of(fmt, raw).reshape(rows, columns)
    packed = gguf_weight(name, mx.array(raw.reshape(rows, -1)), columns)
    return Matrix(packed, weights, raw.size)


def floats(name: str, rows: int, columns: int) -> Matrix:
    """Numbers of this type, as they are."""
    dtype = {"F16": mx.float16, "BF16": mx.bfloat16}[name]
    weights = mx.random.normal((rows, columns), key=mx.random.key(3)).astype(dtype)
    packed = gguf_weight(name, weights.view(mx.uint8), columns)
    return Matrix(packed, np.array(weights.astype(mx.float32)), weights.nbytes)


def _e2m1(codes: NDArray[np.uint8]) -> Floats:
    pairs = np.stack([codes & 15, codes >> 4], axis=-1)
    return E2M1[pairs].reshape(len(codes), -1)


def nvfp4(rows: int, columns: int) -> Matrix:
    """As ModelOpt stores it, with a scale for the tensor."""
    random = np.random.default_rng(5)
    codes = random.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = random.integers(0, 0x7F, (rows, columns // 16), np.uint8)
    tensor = 0.0037
    decoded = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    weights = _e2m1(codes) * np.repeat(decoded, 16, 1) * np.float32(tensor)
    packed = nvfp4_weight(mx.array(codes), mx.array(scales), mx.array(tensor))
    return Matrix(packed, weights, codes.size + scales.size)


def mxfp4(rows: int, columns: int) -> Matrix:
    """As gpt-oss stores it."""
    random = np.random.default_rng(6)
    codes = random.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = random.integers(118, 126, (rows, columns // 32), np.uint8)
    decoded = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    weights = _e2m1(codes) * np.repeat(decoded, 32, 1)
    return Matrix(
        mxfp4_weight(mx.array(codes), mx.array(scales)), weights, codes.size + scales.size
    )


def mxfp8(rows: int, columns: int) -> Matrix:
    """As compressed-tensors stores it."""
    codes, weights = _e4m3(rows, columns)
    scales = np.random.default_rng(10).integers(112, 120, (rows, columns // 32), np.uint8)
    decoded = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    packed = mxfp8_weight(mx.array(codes), mx.array(scales))
    return Matrix(packed, weights * np.repeat(decoded, 32, 1), codes.size + scales.size)


def _e4m3(rows: int, columns: int) -> tuple[NDArray[np.uint8], Floats]:
    codes = np.random.default_rng(7).integers(0, 256, (rows, columns), np.uint8)
    codes[codes & 0x7F == 0x7F] = 1
    return codes, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def fp8_tensor(rows: int, columns: int) -> Matrix:
    codes, weights = _e4m3(rows, columns)
    scale = 0.021
    return Matrix(
        fp8_weight(mx.array(codes), mx.array(scale)), weights * np.float32(scale), codes.size
    )


def fp8_channel(rows: int, columns: int) -> Matrix:
    codes, weights = _e4m3(rows, columns)
    scales = np.random.default_rng(8).random((rows, 1), np.float32)
    return Matrix(fp8_weight(mx.array(codes), mx.array(scales)), weights * scales, codes.size)


def fp8_blocks(rows: int, columns: int) -> Matrix:
    codes, weights = _e4m3(rows, columns)
    shape = (-(-rows // 128), -(-columns // 128))
    scales = mx.array(np.random.default_rng(9).random(shape, np.float32)).astype(mx.bfloat16)
    wide = np.repeat(np.repeat(to_numpy(scales).astype(np.float32), 128, 0), 128, 1)
    packed = fp8_weight(mx.array(codes), scales)
    return Matrix(packed, weights * wide[:rows, :columns], codes.size + 2 * scales.size)


def affine(bits: int, rows: int, columns: int, group: int = 64, dtype: str = "float16") -> Matrix:
    """As MLX quantises it. Its weights are rounded in another order than a kernel's."""
    key = mx.random.key(bits)
    source = mx.random.normal((rows, columns), key=key).astype(getattr(mx, dtype))
    codes, scales, biases = mx.quantize(source, group_size=group, bits=bits)
    wide = (scales.astype(mx.float32), biases.astype(mx.float32))
    weights = np.array(mx.dequantize(codes, *wide, group_size=group, bits=bits))
    packed = affine_weight(codes, scales, biases, bits=bits, group=group)
    return Matrix(packed, weights, codes.nbytes + 2 * scales.nbytes, exact=False)


def centred(rows: int, columns: int) -> Matrix:
    """Four bits as compressed-tensors has them: no offsets, and 8 stands for zero."""
    random = np.random.default_rng(11)
    words = random.integers(0, 2**32, (rows, columns // 8), dtype=np.uint32)
    codes = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    scales = random.uniform(0.01, 0.02, (rows, columns // 128)).astype(np.float16)
    wide = np.repeat(scales.astype(np.float32), 128, 1)
    weights = (codes.reshape(rows, -1).astype(np.float32) - 8) * wide
    packed = affine_weight(mx.array(words), mx.array(scales), None, bits=4, group=128)
    return Matrix(packed, weights, words.nbytes + scales.nbytes)


def _gguf(name: str) -> Callable[[int, int], Matrix]:
    return lambda rows, columns: gguf_matrix(name, rows, columns)


def _affine(bits: int) -> Callable[[int, int], Matrix]:
    return lambda rows, columns: affine(bits, rows, columns)


# By the name that tables have. Columns: a multiple of 256 suits all of them.
MATRICES: Mapping[str, Callable[[int, int], Matrix]] = {
    "F16": lambda rows, columns: floats("F16", rows, columns),
    "BF16": lambda rows, columns: floats("BF16", rows, columns),
    **{name: _gguf(name) for name in BLOCK_FORMATS if name in GGUF_PACKINGS},
    "NVFP4 rows": nvfp4,
    "MXFP4 rows": mxfp4,
    "MXFP8 rows": mxfp8,
    "FP8 tensor": fp8_tensor,
    "FP8 channel": fp8_channel,
    "FP8 128 x 128": fp8_blocks,
    "int4 centred": centred,
    **{f"affine {bits} bit": _affine(bits) for bits in (2, 3, 4, 5, 6, 8)},
}
