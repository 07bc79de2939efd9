"""Matrices as ModelOpt, compressed-tensors and DeepSeek pack them in safetensors.

What lies beside a matrix, and its shape, decide how it is packed; the names of layers in
config.json do not. Sources: checkpoints as NVIDIA's ModelOpt and vLLM's llm-compressor publish
them; the OCP 8-bit floating point and microscaling formats 1.0; DeepSeek-V3's weight format.

MLX reads every type of one byte as uint8. The bytes of NVFP4, MXFP4 and MXFP8 are MLX's own, so
its decoder serves; scales of a whole matrix are multiplied in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.kernels.packing import (
    FP8_TILE,
    PackedWeight,
    affine_weight,
    mxfp4_weight,
    mxfp8_weight,
    nvfp4_weight,
)
from mtplx.loading.foreign_fp8 import expanded_fp8, kept_fp8, turned_fp8
from mtplx.loading.foreign_matrices import Packed

FP8_BLOCK = (FP8_TILE, FP8_TILE)  # where config.json does not say otherwise
_FACTORS = ("_scale", "_scale_inv")  # two names of what weights are multiplied with
_WHOLE_SCALES = {"_scale_2", "_global_scale"}  # which NVFP4 has besides
# Modes of MLX by how many bytes of codes share a byte of scale.
_MODES = {8: ("nvfp4", 16, 4), 16: ("mxfp4", 32, 4), 32: ("mxfp8", 32, 8)}


def expanded(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> mx.array:
    """The matrix in float32, lazy. block: rows and columns that share a scale in FP8 blocks.

    Raises CheckpointError, naming the tensor, for a scale that is missing, and
    UnsupportedTensorError for a packing that is not known, or scales of another shape.
    """
    for each in packed.beside.values():
        if each.size == 0 or packed.codes.size == 0:
            raise packed.unknown(each)
    if packed.codes.dtype != mx.uint8:
        return _words(packed, packed.need("_scale"))
    if _is_fp8(packed):
        return expanded_fp8(packed, block)
    return _microscaled(packed, packed.need(*_FACTORS))


def kept(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> PackedWeight:
    """The matrix as our kernels multiply it as it is, lazy.

    To be asked of what `expanded` knows: scales are taken to be of the right shape here.
    """
    if packed.codes.dtype != mx.uint8:
        return _kept_words(packed)
    if _is_fp8(packed):
        return kept_fp8(packed, block)
    codes, scale = packed.codes, packed.need(*_FACTORS)
    mode, _, _ = _MODES[codes.shape[-1] // scale.shape[-1]]
    if mode == "nvfp4":
        whole = _whole_scale(packed)
        return nvfp4_weight(codes, scale, whole if whole.ndim == 0 else whole[..., 0])
    return (mxfp4_weight if mode == "mxfp4" else mxfp8_weight)(codes, scale)


def turned(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> PackedWeight | None:
    """The matrix with rows for columns where that leaves every code as it is, lazy.

    To be asked of what `expanded` knows.
    """
    if packed.codes.dtype != mx.uint8 or not _is_fp8(packed):
        return None
    return turned_fp8(packed, block)


def _is_fp8(packed: Packed) -> bool:
    """Else its scales are bytes, each for a few weights of a row."""
    scale, codes = packed.need(*_FACTORS), packed.codes
    if scale.dtype != mx.uint8:
        return True
    if packed.beside.keys() & _WHOLE_SCALES:
        return False
    alike = scale.shape[:-1] == codes.shape[:-1]
    return not alike or codes.shape[-1] not in [ratio * scale.shape[-1] for ratio in _MODES]


@dataclass(frozen=True, slots=True)
class Fault:
    """What may be wrong with a matrix. there: [] bool, lazy. problem: what is then to be said."""

    there: mx.array
    problem: str


def faults(packed: Packed) -> Iterator[Fault]:
    """Scales, and codes where they can be that, which are no numbers: a kernel reads them without a
    word. To be asked of what `expanded` knows."""
    has_bytes = packed.codes.dtype == mx.uint8
    is_nvfp4 = has_bytes and packed.beside.keys() & _WHOLE_SCALES
    for ending, scale in packed.beside.items():
        name = f"{packed.name}{ending}"
        if ending == "_shape":
            continue
        if scale.dtype == mx.uint8:
            no_number = (scale & 0x7F) == 0x7F if is_nvfp4 else scale == 0xFF
            yield Fault(mx.any(no_number), f"{name} holds a byte that is no number")
            continue
        yield Fault(~mx.all(mx.isfinite(scale.astype(mx.float32))), f"{name} is not finite")
        if ending == "_global_scale":
            yield Fault(mx.any(scale == 0), f"{name} is zero, which is no number to divide by")
    if has_bytes and not is_nvfp4 and not _is_mxfp4(packed):
        no_number = (packed.codes & 0x7F) == 0x7F
        yield Fault(mx.any(no_number), f"{packed.base} holds a weight that is no number")


def refuse(found: Sequence[Fault]) -> None:
    """CheckpointError for the first fault that is there. They are evaluated together."""
    there: list[bool] = mx.stack([fault.there for fault in found]).tolist() if found else []  # type: ignore[assignment]  # it has one axis
    for fault in (fault for fault, wrong in zip(found, there, strict=True) if wrong):
        raise CheckpointError(f"{fault.problem}. Fetch the checkpoint again.")


def _is_mxfp4(packed: Packed) -> bool:
    scale = packed.need(*_FACTORS)
    if _is_fp8(packed):
        return False
    return _MODES[packed.codes.shape[-1] // scale.shape[-1]][0] == "mxfp4"


def _microscaled(packed: Packed, scale: mx.array) -> mx.array:
    """NVFP4, MXFP4 and MXFP8: a byte of scale for each 16 or 32 weights."""
    if packed.codes.shape[:-1] != scale.shape[:-1]:
        raise packed.unknown(scale)
    ratio, rest = divmod(packed.codes.shape[-1], scale.shape[-1])
    if rest or ratio not in _MODES:
        raise packed.unknown(scale)
    mode, group_size, bits = _MODES[ratio]
    weights = mx.dequantize(
        mx.view(mx.contiguous(packed.codes), mx.uint32),
        scale,
        None,
        group_size,
        bits,
        mode=mode,
        dtype=mx.float32,
    )
    return weights * _whole_scale(packed) if mode == "nvfp4" else weights


def _whole_scale(packed: Packed) -> mx.array:
    """NVFP4's factor of a matrix, or of each expert: stored as it is, or its reciprocal."""
    if "_global_scale" in packed.beside:
        factor = 1 / packed.beside["_global_scale"].astype(mx.float32)
    else:
        factor = packed.need("_scale_2").astype(mx.float32)
    if factor.size == 1:
        return factor.reshape(())
    if packed.codes.ndim == 3 and factor.size == packed.codes.shape[0]:
        return factor.reshape(-1, 1, 1)
    raise packed.unknown(factor)


def _words(packed: Packed, scale: mx.array) -> mx.array:
    """compressed-tensors' whole numbers: the lowest bits first in words, less half their range."""
    bits, group = _word_sizes(packed, scale)
    words = mx.view(packed.codes, mx.uint32)[..., None]
    codes = (words >> mx.arange(0, 32, bits, dtype=mx.uint32)) & (2**bits - 1)
    rows = codes.reshape(*packed.codes.shape[:-1], -1)[..., : group * scale.shape[-1]]
    weights = rows.astype(mx.float32) - 2 ** (bits - 1)
    scaled: mx.array = weights * mx.repeat(scale.astype(mx.float32), group, -1)
    return scaled


def _kept_words(packed: Packed) -> PackedWeight:
    scale = packed.need("_scale")
    bits, group = _word_sizes(packed, scale)
    return affine_weight(mx.view(packed.codes, mx.uint32), scale, None, bits=bits, group=group)


def _word_sizes(packed: Packed, scale: mx.array) -> tuple[int, int]:
    """Bits of a weight, and how many weights share a scale."""
    if "_zero_point" in packed.beside:
        raise UnsupportedTensorError(
            f"{packed.base} is packed with zero points, which are not readable here yet. Take a "
            "symmetric checkpoint, or the original."
        )
    shape = packed.need("_shape")
    if packed.codes.shape[:-1] != scale.shape[:-1] or not mx.issubdtype(shape.dtype, mx.integer):
        raise packed.unknown(scale)
    width: int = shape.reshape(-1)[-1].item()  # type: ignore[assignment]
    if width < 1:
        raise packed.unknown(scale)
    words = packed.codes.shape[-1]  # the last of which may be filled up
    bits = next((each for each in (8, 4, 2) if -(-width * each // 32) == words), None)
    group, rest = divmod(width, scale.shape[-1])
    if bits is None or rest:
        raise packed.unknown(scale)
    return bits, group
