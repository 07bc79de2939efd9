"""Matrices as ModelOpt, compressed-tensors and DeepSeek pack them in safetensors, expanded.

What lies beside a matrix, and its shape, decide how it is packed; the names of layers in
config.json do not. Sources: checkpoints as NVIDIA's ModelOpt and vLLM's llm-compressor publish
them; the OCP 8-bit floating point and microscaling formats 1.0; DeepSeek-V3's weight format.

MLX reads every type of one byte as uint8. The bytes of NVFP4, MXFP4 and MXFP8 are MLX's own, so
its decoder serves; scales of a whole matrix are multiplied in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.kernels.packing import PackedWeight, fp8_weight, mxfp4_weight, nvfp4_weight
from mtplx.models.family import Tensors

FP8_BLOCK = (128, 128)  # where config.json does not say otherwise
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

    Raises CheckpointError, naming the tensor, for a scale that is missing, of another shape or no
    number, and UnsupportedTensorError for a packing that is not known.
    """
    if ".weight_scale_inv" in packed.beside:
        return _fp8_blocks(packed, block)
    scale = packed.need(".weight_scale")
    if packed.codes.dtype != mx.uint8:
        return _words(packed, scale)
    if scale.dtype != mx.uint8:
        return _fp8(packed, scale)
    return _microscaled(packed, scale)


def kept(packed: Packed, block: tuple[int, int] = FP8_BLOCK) -> PackedWeight | None:
    """The matrix as our kernels multiply it as it is; None where they do not.

    To be asked of what `expanded` has looked at: a kernel reads a wrong scale without a word.
    """
    if packed.codes.ndim != 2 or packed.codes.dtype != mx.uint8:
        return None
    codes, beside = packed.codes, packed.beside
    if ".weight_scale_inv" in beside:
        scale = beside[".weight_scale_inv"]
        fits = block == FP8_BLOCK and scale.dtype != mx.uint8 and not codes.shape[1] % 16
        return fp8_weight(codes, scale) if fits else None
    scale = packed.need(".weight_scale")
    if scale.dtype != mx.uint8:
        return None if codes.shape[1] % 16 else fp8_weight(codes, scale.reshape(-1, 1))
    mode, _, _ = _MODES[codes.shape[1] // scale.shape[1]]
    if mode == "nvfp4":
        return nvfp4_weight(codes, scale, _whole_scale(packed))
    return mxfp4_weight(codes, scale) if mode == "mxfp4" else None


def _microscaled(packed: Packed, scale: mx.array) -> mx.array:
    """NVFP4, MXFP4 and MXFP8: a byte of scale for each 16 or 32 weights."""
    ratio, rest = divmod(packed.codes.shape[-1], scale.shape[-1])
    if rest or ratio not in _MODES or packed.codes.shape[:-1] != scale.shape[:-1]:
        raise _unknown(packed, scale)
    mode, group_size, bits = _MODES[ratio]
    no_number = (scale & 0x7F) == 0x7F if mode == "nvfp4" else scale == 0xFF
    _refuse(mx.any(no_number), f"{packed.base}.weight_scale holds a byte that is no number")
    if mode == "mxfp8":
        _refuse_codes(packed)
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
        stored = packed.beside[".weight_global_scale"].astype(mx.float32)
        _refuse(mx.any(stored == 0), f"{packed.base}.weight_global_scale is zero")
        factor = 1 / stored
    else:
        factor = packed.need(".weight_scale_2").astype(mx.float32)
    _refuse(~mx.all(mx.isfinite(factor)), f"{packed.base}'s scale of the matrix is no number")
    if factor.size == 1:
        return factor.reshape(())
    if packed.codes.ndim == 3 and factor.size == packed.codes.shape[0]:
        return factor.reshape(-1, 1, 1)
    raise _unknown(packed, factor)


def _fp8(packed: Packed, scale: mx.array) -> mx.array:
    """E4M3 with one scale for the matrix, for each expert, or for each row."""
    rows = packed.codes.shape[:-1]
    shapes = [(1,) * packed.codes.ndim, (*rows, 1), (*rows[:-1], 1, 1)]
    fitting = next((shape for shape in shapes if scale.size == _size(shape)), None)
    if fitting is None:
        raise _unknown(packed, scale)
    _refuse_scales(packed, scale)
    return _e4m3(packed) * scale.astype(mx.float32).reshape(fitting)


def _fp8_blocks(packed: Packed, block: tuple[int, int]) -> mx.array:
    """E4M3 with a scale for each block of rows and columns, those at the edges cut off."""
    scale = packed.beside[".weight_scale_inv"]
    num_rows, num_columns = packed.codes.shape[-2:]
    needed = (-(-num_rows // block[0]), -(-num_columns // block[1]))
    if scale.shape[-2:] != needed or scale.shape[:-2] != packed.codes.shape[:-2]:
        raise _unknown(packed, scale)
    if scale.dtype == mx.uint8:  # E8M0
        _refuse(mx.any(scale == 0xFF), f"{packed.base}.weight_scale_inv holds no number")
        scale = mx.power(2.0, scale.astype(mx.float32) - 127)
    _refuse_scales(packed, scale)
    factors = mx.repeat(mx.repeat(scale.astype(mx.float32), block[0], -2), block[1], -1)
    return _e4m3(packed) * factors[..., :num_rows, :num_columns]


def _e4m3(packed: Packed) -> mx.array:
    _refuse_codes(packed)
    return mx.from_fp8(packed.codes, mx.float32)


def _words(packed: Packed, scale: mx.array) -> mx.array:
    """compressed-tensors' whole numbers: the lowest bits first in words, less half their range."""
    if ".weight_zero_point" in packed.beside:
        raise UnsupportedTensorError(
            f"{packed.base} is packed with zero points, which are not readable here yet. Take a "
            "symmetric checkpoint, or the original."
        )
    width: int = packed.need(".weight_shape")[-1].item()  # type: ignore[assignment]
    bits = 32 * packed.codes.shape[-1] // width
    group, rest = divmod(width, scale.shape[-1])
    if bits not in (2, 4, 8) or rest or packed.codes.shape[-1] * 32 != width * bits:
        raise _unknown(packed, scale)
    _refuse_scales(packed, scale)
    words = mx.view(packed.codes, mx.uint32)[..., None]
    codes = (words >> mx.arange(0, 32, bits, dtype=mx.uint32)) & (2**bits - 1)
    weights = codes.reshape(*packed.codes.shape[:-1], width).astype(mx.float32) - 2 ** (bits - 1)
    scaled: mx.array = weights * mx.repeat(scale.astype(mx.float32), group, -1)
    return scaled


def _refuse_scales(packed: Packed, scale: mx.array) -> None:
    finite = mx.all(mx.isfinite(scale.astype(mx.float32)))
    _refuse(~finite, f"A scale of {packed.base} is not finite")


def _refuse_codes(packed: Packed) -> None:
    """0x7F and 0xFF are no numbers in E4M3."""
    no_number = (packed.codes & 0x7F) == 0x7F
    _refuse(mx.any(no_number), f"{packed.base} holds a weight that is no number")


def _refuse(wrong: mx.array, problem: str) -> None:
    if wrong.item():
        raise CheckpointError(f"{problem}. Fetch the checkpoint again.")


def _unknown(packed: Packed, scale: mx.array) -> UnsupportedTensorError:
    return UnsupportedTensorError(
        f"{packed.base} is packed as {packed.codes.dtype} {list(packed.codes.shape)} with scales "
        f"{scale.dtype} {list(scale.shape)}, which is no packing that is known here."
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
