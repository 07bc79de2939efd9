"""Which Metal functions decode a format, and matrices that are packed in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from mtplx.errors import CheckpointError

PART = 16  # weights that a decoding function gives at a time


@dataclass(frozen=True, slots=True)
class Packing:
    """A format as kernels see it.

    files: of mtplx.metal, without their suffix; the last one defines `Weight`. block: weights that
    lie together, so K is a multiple of it. template: what that `Weight` is made for. shared_rows:
    how many rows of the matrix share one of its planes of scales.
    """

    files: tuple[str, ...]
    block: int
    template: tuple[tuple[str, int | mx.Dtype], ...] = ()
    shared_rows: int = 1

    @property
    def name(self) -> str:
        """Of the kernels that read it."""
        made_for = (str(value).removeprefix("mlx.core.") for _, value in self.template)
        return "-".join([self.files[-1], *made_for])


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [N, K] as it is on disk, or E of them: [E, N, K].

    codes: uint8 [N, row bytes] or [E, N, row bytes]. scales, biases: planes that some formats have
    besides, with a line for each row or for each `shared_rows` of them. multiplier: [N] or [E * N]
    float32, what the sums of a row are multiplied with. run: where weights cannot be taken `PART`
    at a time, how many of them there are before codes without a meaning fill up such a part; 0
    elsewhere.
    """

    packing: Packing
    shape: tuple[int, ...]
    codes: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    multiplier: mx.array | None = None
    run: int = 0

    @property
    def places(self) -> int:
        """Of the codes of a row, with those that have no meaning."""
        columns = self.shape[-1]
        return -(-columns // self.run) * _in_parts(self.run) if self.run else columns

    def spread(self, x: mx.array) -> mx.array:
        """Activations [.., K] in the places of their weights, with zeros between: what kernels
        take."""
        return spread(x, self.run) if self.run else x

    def gathered(self, y: mx.array) -> mx.array:
        """[.., K] of what stands in the places of weights."""
        if not self.run:
            return y
        runs = mx.unflatten(y, -1, (-1, _in_parts(self.run)))[..., : self.run]
        return mx.flatten(runs, -2)[..., : self.shape[-1]]


def spread(array: mx.array, run: int) -> mx.array:
    """The last axis in runs of this length, each with zeros behind it up to whole parts."""
    missing = [(0, 0)] * (array.ndim - 1)
    whole = mx.pad(array, [*missing, (0, -array.shape[-1] % run)])
    runs = mx.unflatten(whole, -1, (-1, run))
    return mx.flatten(mx.pad(runs, [*missing, (0, 0), (0, -run % PART)]), -2)


def _in_parts(length: int) -> int:
    return -(-length // PART) * PART


def _plain(*names: str, block: int) -> dict[str, Packing]:
    return {name: Packing((name.lower(),), block) for name in names}


_FLOAT_PACKINGS: Mapping[str, Packing] = {
    "F32": Packing(("floats",), PART, (("S", mx.float32),)),
    "F16": Packing(("floats",), PART, (("S", mx.float16),)),
    "BF16": Packing(("floats",), PART, (("S", mx.bfloat16),)),
}
# Block formats of GGUF: one plane with the blocks of a row side by side.
GGUF_PACKINGS: Mapping[str, Packing] = {
    **_plain("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", block=32),
    **_plain("Q2_K", "Q3_K", "Q6_K", "TQ1_0", "TQ2_0", block=256),
    **_plain("Q2_0", block=64),
    **_plain("Q1_0", block=128),
    "Q4_K": Packing(("k_scales", "q4_k"), 256),
    "Q5_K": Packing(("k_scales", "q5_k"), 256),
    "IQ4_NL": Packing(("iq4_values", "iq4_nl"), 32),
    "IQ4_XS": Packing(("iq4_values", "iq4_xs"), 256),
    "IQ1_S": Packing(("iq1_codebook", "iq1_entries", "iq1_s"), 256),
    "IQ1_M": Packing(("iq1_codebook", "iq1_entries", "iq1_m"), 256),
    "IQ2_XXS": Packing(("signs", "iq2_xxs_codebook", "iq2_entries", "iq2_xxs"), 256),
    "IQ2_XS": Packing(("signs", "iq2_xs_codebook", "iq2_entries", "iq2_xs"), 256),
    "IQ2_S": Packing(("signs", "iq2_s_codebook", "iq2_entries", "iq2_s"), 256),
    "IQ3_XXS": Packing(("signs", "iq3_xxs_codebook", "iq3_xxs"), 256),
    "IQ3_S": Packing(("signs", "iq3_s_codebook", "iq3_s"), 256),
    "MXFP4": Packing(("small_floats", "mxfp4"), 32),
    "NVFP4": Packing(("small_floats", "nvfp4"), 64),
}
_NVFP4_ROWS = Packing(("small_floats", "nvfp4_rows"), 16)
_MXFP4_ROWS = Packing(("small_floats", "mxfp4_rows"), 32)
_MXFP8_ROWS = Packing(("small_floats", "mxfp8_rows"), 32)
_FP8_ROWS = Packing(("small_floats", "fp8_rows"), 16)
FP8_TILE = 128  # rows and columns that share a scale, where nothing else is said


def gguf_weight(
    name: str, codes: mx.array, columns: int, multiplier: mx.array | None = None
) -> PackedWeight:
    """A matrix of one of GGUF's types: codes uint8 [.., N, row bytes], K = columns.

    multiplier: the scale of the tensor that goes with some files' NVFP4, one number.
    """
    rows = codes.shape[:-1]
    each = None if multiplier is None else _for_rows(multiplier.squeeze(), rows)
    packing = _FLOAT_PACKINGS.get(name) or GGUF_PACKINGS[name]
    return PackedWeight(packing, (*rows, columns), codes, multiplier=each)


def float_weight(weights: mx.array) -> PackedWeight:
    """A matrix [.., N, K] of float32, float16 or bfloat16 as it is."""
    names = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
    run = weights.shape[-1] if weights.shape[-1] % PART else 0
    codes = (spread(weights, run) if run else weights).view(mx.uint8)
    return PackedWeight(_FLOAT_PACKINGS[names[weights.dtype]], weights.shape, codes, run=run)


def nvfp4_weight(codes: mx.array, scales: mx.array, multiplier: mx.array) -> PackedWeight:
    """NVFP4 of ModelOpt and compressed-tensors.

    codes: uint8 [.., N, K / 2]. scales: uint8 [.., N, K / 16], E4M3. multiplier: the tensor's
    scale, of any shape that fits [.., N]; compressed-tensors stores its reciprocal.
    """
    return _two_planes(_NVFP4_ROWS, 2 * codes.shape[-1], codes, scales, multiplier)


def mxfp4_weight(codes: mx.array, scales: mx.array) -> PackedWeight:
    """MXFP4 of gpt-oss: codes uint8 [.., N, K / 2], scales uint8 [.., N, K / 32], E8M0."""
    return _two_planes(_MXFP4_ROWS, 2 * codes.shape[-1], codes, scales, None)


def mxfp8_weight(codes: mx.array, scales: mx.array) -> PackedWeight:
    """MXFP8: codes uint8 [.., N, K], E4M3; scales uint8 [.., N, K / 32], E8M0."""
    return _two_planes(_MXFP8_ROWS, codes.shape[-1], codes, scales, None)


def fp8_weight(
    codes: mx.array, scales: mx.array, tile: tuple[int, int] = (FP8_TILE, FP8_TILE)
) -> PackedWeight:
    """FP8 E4M3, codes uint8 [.., N, K].

    scales: one number, [.., N, 1], or one for each tile of rows and columns: [.., N / tile[0],
    K / tile[1]], both rounded up; float32, bfloat16, or uint8 as E8M0.
    """
    shape = codes.shape
    *stack, rows, columns = shape
    scales = powers_of_two(scales) if scales.dtype == mx.uint8 else scales
    by_rows = scales.size == 1 or scales.shape == (*shape[:-1], 1)
    run = columns if by_rows or tile[1] % PART == 0 else min(tile[1], columns)
    run = run if run % PART else 0
    codes = spread(codes, run) if run else codes
    if by_rows:
        one = () if scales.size == 1 else shape[:-1]
        multiplier = _for_rows(scales.reshape(one), shape[:-1])
        return PackedWeight(_FP8_ROWS, shape, codes, multiplier=multiplier, run=run)
    if scales.shape != (*stack, -(-rows // tile[0]), -(-columns // tile[1])):
        raise CheckpointError(
            f"FP8 weights of shape {shape} have scales of shape {scales.shape}; one for all, "
            f"one a row or one for each {tile[0]} x {tile[1]} weights is understood."
        )
    if stack and rows % tile[0]:  # a line of scales would be shared by two experts
        scales, tile = mx.repeat(scales, tile[0], -2)[..., :rows, :], (1, tile[1])
    template = (("S", scales.dtype), ("ROWS", tile[0]), ("COLUMNS", _in_parts(tile[1])))
    packing = Packing(("small_floats", "fp8_blocks"), 16, template, shared_rows=tile[0])
    return PackedWeight(packing, shape, codes, scales, run=run)


def powers_of_two(exponents: mx.array) -> mx.array:
    """E8M0 bytes as float32, exactly: 2 to the byte less 127. 0xff, which is no number, is not
    looked for."""
    bits = mx.where(exponents == 0, 0x00400000, exponents.astype(mx.uint32) << 23)
    return bits.astype(mx.uint32).view(mx.float32)


def affine_weight(
    codes: mx.array, scales: mx.array, biases: mx.array | None, *, bits: int, group: int
) -> PackedWeight:
    """MLX's affine formats of 2 to 8 bits, and compressed-tensors' whole numbers, which have none.

    codes: uint32 [.., N, K bits / 32], rounded up. scales, biases: [.., N, K / group], of one
    floating type. biases: None where half the range of the codes stands for zero.
    """
    as_bytes = codes.view(mx.uint8)
    columns = group * scales.shape[-1]
    run, whole = group if group % PART else 0, _in_parts(group)
    if run:
        as_bytes = _fields_in_parts(as_bytes, bits, columns, run)
    template = (("BITS", bits), ("GROUP", whole), ("CENTRED", biases is None), ("S", scales.dtype))
    packing = Packing(("affine",), whole, template)
    shape = (*codes.shape[:-1], columns)
    return PackedWeight(packing, shape, as_bytes, scales, biases, run=run)


def _fields_in_parts(codes: mx.array, bits: int, columns: int, run: int) -> mx.array:
    """Bytes of whole fields of 2, 4 or 8 bits, spread."""
    shifts = mx.arange(0, 8, bits, dtype=mx.uint8)
    fields = mx.flatten((codes[..., None] >> shifts) & (2**bits - 1), -2)[..., :columns]
    apart = mx.unflatten(spread(fields, run), -1, (-1, shifts.size))
    return mx.sum(apart << shifts, axis=-1).astype(mx.uint8)


def _two_planes(
    packing: Packing,
    columns: int,
    codes: mx.array,
    scales: mx.array,
    multiplier: mx.array | None,
) -> PackedWeight:
    rows = codes.shape[:-1]
    if scales.shape != (*rows, columns // packing.block):
        raise CheckpointError(
            f"Packed weights of shape {codes.shape} have scales of shape {scales.shape}; "
            f"one for each {packing.block} weights of a row is understood."
        )
    each = None if multiplier is None else _for_rows(multiplier, rows)
    return PackedWeight(packing, (*rows, columns), codes, scales, multiplier=each)


def _for_rows(scale: mx.array, rows: tuple[int, ...]) -> mx.array:
    spread = mx.broadcast_to(scale.astype(mx.float32), rows)
    return mx.contiguous(spread).reshape(-1)
