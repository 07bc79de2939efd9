"""Matrices as ModelOpt, compressed-tensors and DeepSeek pack them in safetensors.

What lies beside a matrix, and its shape, decide how it is packed; the names of layers in
config.json do not. Sources: checkpoints as NVIDIA's ModelOpt and vLLM's llm-compressor publish
them; the OCP 8-bit floating point and microscaling formats 1.0; DeepSeek-V3's weight format.

MLX reads every type of one byte as uint8. The bytes of NVFP4, MXFP4 and MXFP8 are MLX's own, so
its decoder serves; scales of a whole matrix are multiplied in float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.kernels.packing import (
    FP8_TILE,
    PART,
    PackedWeight,
    affine_weight,
    fp8_weight,
    mxfp4_weight,
    mxfp8_weight,
    nvfp4_weight,
    powers_of_two,
)
from mtplx.models.family import Tensors

FP8_BLOCK = (FP8_TILE, FP8_TILE)  # where config.json does not say otherwise
CODES = (".weight_packed", ".weight")
SCALES = (
    ".weight_scale",
    ".weight_scale_2",
    ".weight_global_scale",
    ".weight_scale_inv",
    ".weight_zero_point",
    ".weight_shape",
)
# Modes of MLX by how many bytes of codes share a byte of scale.
_MODES = {8: ("nvfp4", 16, 4), 16: ("mxfp4", 32, 4), 32: ("mxfp8", 32, 8)}


@dataclass(frozen=True, slots=True)
class Packed:
    """One packed matrix. codes: bytes [..., N, W] or words; beside: what else there is of it, by
    what the names end in."""

    base: str
    codes: mx.array
    beside: Mapping[str, mx.array]

    def need(self, ending: str) -> mx.array:
        """Raises CheckpointError where it is not there: expanded without, it would be noise."""
        if ending not in self.beside:
            raise CheckpointError(
                f"{self.base} is packed, and {self.base}{ending} is not there. Fetch the "
                "checkpoint again."
            )
        return self.beside[ending]


def packed_matrices(tensors: Tensors) -> Iterator[Packed]:
    """The matrices of a checkpoint that are packed in a foreign manner."""
    for name, array in tensors.items():
        ending = next((each for each in CODES if name.endswith(each)), None)
        if ending is None or array.ndim < 2:
            continue
        if array.dtype == mx.uint8 or ending == ".weight_packed":
            base = name.removesuffix(ending)
            beside = {e: tensors[f"{base}{e}"] for e in SCALES if f"{base}{e}" in tensors}
            yield Packed(base, array, beside)


def expanded(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> mx.array:
    """The matrix in float32, lazy. block: rows and columns that share a scale in FP8 blocks.

    Raises CheckpointError, naming the tensor, for a scale that is missing, and
    UnsupportedTensorError for a packing that is not known, or scales of another shape.
    """
    for each in packed.beside.values():
        if each.size == 0 or packed.codes.size == 0:
            raise _unknown(packed, each)
    if ".weight_scale_inv" in packed.beside:
        return _fp8_blocks(packed, block)
    scale = packed.need(".weight_scale")
    if packed.codes.dtype != mx.uint8:
        return _words(packed, scale)
    if scale.dtype != mx.uint8:
        return mx.from_fp8(packed.codes, mx.float32) * _fp8_scale(packed, scale)
    return _microscaled(packed, scale)


def kept(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> PackedWeight | str:
    """The matrix as our kernels multiply it as it is, lazy; or why they do not.

    To be asked of what `expanded` knows: scales are taken to be of the right shape here.
    """
    codes, beside = packed.codes, packed.beside
    if codes.dtype != mx.uint8:
        return _kept_words(packed)
    if ".weight_scale_inv" in beside:
        if codes.shape[-1] % PART or block[1] % PART:
            return _not_in_parts(codes.shape[-1], block[1])
        return fp8_weight(codes, beside[".weight_scale_inv"], block)
    scale = packed.need(".weight_scale")
    if scale.dtype != mx.uint8:
        if codes.shape[-1] % PART:
            return _not_in_parts(codes.shape[-1])
        rows = mx.broadcast_to(_fp8_scale(packed, scale), (*codes.shape[:-1], 1))
        return fp8_weight(codes, rows)
    mode, _, _ = _MODES[codes.shape[-1] // scale.shape[-1]]
    if mode == "nvfp4":
        whole = _whole_scale(packed)
        return nvfp4_weight(codes, scale, whole if whole.ndim == 0 else whole[..., 0])
    return (mxfp4_weight if mode == "mxfp4" else mxfp8_weight)(codes, scale)


@dataclass(frozen=True, slots=True)
class Fault:
    """What may be wrong with a matrix. there: [] bool, lazy. problem: what is then to be said."""

    there: mx.array
    problem: str


def faults(packed: Packed) -> Iterator[Fault]:
    """Scales, and codes where they can be that, which are no numbers: a kernel reads them without a
    word. To be asked of what `expanded` knows."""
    has_bytes = packed.codes.dtype == mx.uint8
    is_nvfp4 = has_bytes and packed.beside.keys() & {".weight_scale_2", ".weight_global_scale"}
    for ending, scale in packed.beside.items():
        name = f"{packed.base}{ending}"
        if ending == ".weight_shape":
            continue
        if scale.dtype == mx.uint8:
            no_number = (scale & 0x7F) == 0x7F if is_nvfp4 else scale == 0xFF
            yield Fault(mx.any(no_number), f"{name} holds a byte that is no number")
            continue
        yield Fault(~mx.all(mx.isfinite(scale.astype(mx.float32))), f"{name} is not finite")
        if ending == ".weight_global_scale":
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
    scale = packed.beside.get(".weight_scale")
    if scale is None or scale.dtype != mx.uint8:
        return False
    return _MODES[packed.codes.shape[-1] // scale.shape[-1]][0] == "mxfp4"


def _microscaled(packed: Packed, scale: mx.array) -> mx.array:
    """NVFP4, MXFP4 and MXFP8: a byte of scale for each 16 or 32 weights."""
    ratio, rest = divmod(packed.codes.shape[-1], scale.shape[-1])
    if rest or ratio not in _MODES or packed.codes.shape[:-1] != scale.shape[:-1]:
        raise _unknown(packed, scale)
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
    if ".weight_global_scale" in packed.beside:
        factor = 1 / packed.beside[".weight_global_scale"].astype(mx.float32)
    else:
        factor = packed.need(".weight_scale_2").astype(mx.float32)
    if factor.size == 1:
        return factor.reshape(())
    if packed.codes.ndim == 3 and factor.size == packed.codes.shape[0]:
        return factor.reshape(-1, 1, 1)
    raise _unknown(packed, factor)


def _fp8_scale(packed: Packed, scale: mx.array) -> mx.array:
    """E4M3's one scale for the matrix, for each expert, or for each row, in their places."""
    rows = packed.codes.shape[:-1]
    shapes = [(1,) * packed.codes.ndim, (*rows, 1), (*rows[:-1], 1, 1)]
    fitting = next((shape for shape in shapes if scale.size == prod(shape)), None)
    if fitting is None:
        raise _unknown(packed, scale)
    return scale.astype(mx.float32).reshape(fitting)


def _fp8_blocks(packed: Packed, block: tuple[int, int]) -> mx.array:
    """E4M3 with a scale for each block of rows and columns, those at the edges cut off."""
    scale = packed.beside[".weight_scale_inv"]
    num_rows, num_columns = packed.codes.shape[-2:]
    needed = (-(-num_rows // block[0]), -(-num_columns // block[1]))
    if scale.shape[-2:] != needed or scale.shape[:-2] != packed.codes.shape[:-2]:
        raise _unknown(packed, scale)
    values = powers_of_two(scale) if scale.dtype == mx.uint8 else scale.astype(mx.float32)
    factors = mx.repeat(mx.repeat(values, block[0], -2), block[1], -1)
    return mx.from_fp8(packed.codes, mx.float32) * factors[..., :num_rows, :num_columns]


def _words(packed: Packed, scale: mx.array) -> mx.array:
    """compressed-tensors' whole numbers: the lowest bits first in words, less half their range."""
    bits, group = _word_sizes(packed, scale)
    words = mx.view(packed.codes, mx.uint32)[..., None]
    codes = (words >> mx.arange(0, 32, bits, dtype=mx.uint32)) & (2**bits - 1)
    width = group * scale.shape[-1]
    weights = codes.reshape(*packed.codes.shape[:-1], width).astype(mx.float32) - 2 ** (bits - 1)
    scaled: mx.array = weights * mx.repeat(scale.astype(mx.float32), group, -1)
    return scaled


def _kept_words(packed: Packed) -> PackedWeight | str:
    scale = packed.need(".weight_scale")
    bits, group = _word_sizes(packed, scale)
    if group % PART:
        return _not_in_parts(group)
    return affine_weight(mx.view(packed.codes, mx.uint32), scale, None, bits=bits, group=group)


def _word_sizes(packed: Packed, scale: mx.array) -> tuple[int, int]:
    """Bits of a weight, and how many weights share a scale."""
    if ".weight_zero_point" in packed.beside:
        raise UnsupportedTensorError(
            f"{packed.base} is packed with zero points, which are not readable here yet. Take a "
            "symmetric checkpoint, or the original."
        )
    shape = packed.need(".weight_shape")
    if packed.codes.shape[:-1] != scale.shape[:-1] or not mx.issubdtype(shape.dtype, mx.integer):
        raise _unknown(packed, scale)
    width: int = shape.reshape(-1)[-1].item()  # type: ignore[assignment]
    if width < 1:
        raise _unknown(packed, scale)
    bits = 32 * packed.codes.shape[-1] // width
    group, rest = divmod(width, scale.shape[-1])
    if bits not in (2, 4, 8) or rest or packed.codes.shape[-1] * 32 != width * bits:
        raise _unknown(packed, scale)
    return bits, group


def _not_in_parts(*lengths: int) -> str:
    odd = next(length for length in lengths if length % PART)
    return f"{odd} weights that lie together are no multiple of {PART}"


def _unknown(packed: Packed, scale: mx.array) -> UnsupportedTensorError:
    return UnsupportedTensorError(
        f"{packed.base} is packed as {packed.codes.dtype} {list(packed.codes.shape)} with scales "
        f"{scale.dtype} {list(scale.shape)}, which is no packing that is known here."
    )
