"""Formats that look up four or eight weights at a time in a codebook: IQ1, IQ2 and IQ3.

Source: ggml-common.h and ggml-quants.c of ggml. The codebooks come from the `gguf` package.
"""

from functools import cache

import numpy as np

from mtplx.quant.bits import Array, Bytes, Codes, Unpacked, fields, half, sign_bits, signed, words

_SIGN_SHIFTS = (0, 7, 14, 21)  # four indices of signs in a word, under four bits of scale


@cache
def codebook(name: str) -> Codes:
    """The entries [N, 4 or 8] int8 of a format's codebook; read only."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    entries: Codes = kind.grid.reshape(kind.grid_shape).astype(np.int8)
    entries.flags.writeable = False
    return entries


def iq2_xxs(blocks: Bytes) -> Unpacked:
    """d, then for each 32 weights four indices of a byte and a word of signs and scale."""
    pairs = words(blocks, 2, 66, np.uint32).reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(pairs[..., 0]).view(np.uint8)
    scales = half(blocks, 0) * (0.5 + (pairs[..., 1] >> 28).astype(np.float32)) / 4
    return Unpacked(_looked_up("IQ2_XXS", indices, _paired_signs(pairs[..., 1])), scales)


def iq2_xs(blocks: Bytes) -> Unpacked:
    """d, 32 words of a 9-bit index and 7 bits of signs, 8 bytes of scales of 16 weights."""
    packed = words(blocks, 2, 66, np.uint16)
    signs = sign_bits(_even_parity((packed >> 9).astype(np.uint8)))
    codes = _looked_up("IQ2_XS", packed & np.uint16(511), signs)
    return Unpacked(codes, _half_steps(blocks, 66))


def iq2_s(blocks: Bytes) -> Unpacked:
    """d, 32 bytes of indices, 32 of signs, 8 of two high bits each, 8 of scales."""
    high = fields(blocks[:, 66:74], (0, 2, 4, 6), 3).reshape(len(blocks), -1)
    indices = blocks[:, 2:34] | (high.astype(np.uint16) << 8)
    return Unpacked(
        _looked_up("IQ2_S", indices, sign_bits(blocks[:, 34:66])), _half_steps(blocks, 74)
    )


def iq3_xxs(blocks: Bytes) -> Unpacked:
    """d, 64 bytes of indices of four weights, 8 words of signs and scale of 32 weights."""
    packed = words(blocks, 66, 98, np.uint32)
    scales = half(blocks, 0) * (0.5 + (packed >> 28).astype(np.float32)) / 2
    return Unpacked(_looked_up("IQ3_XXS", blocks[:, 2:66], _paired_signs(packed)), scales)


def iq3_s(blocks: Bytes) -> Unpacked:
    """d, 64 bytes of indices, 8 of high bits, 32 of signs, 4 of scales of 32 weights."""
    high = fields(blocks[:, 66:74], range(8), 1).reshape(len(blocks), -1)
    indices = blocks[:, 2:66] | (high.astype(np.uint16) << 8)
    steps = fields(blocks[:, 106:110], (0, 4), 15).reshape(len(blocks), -1)
    scales = half(blocks, 0) * (1 + 2 * steps.astype(np.float32))
    return Unpacked(_looked_up("IQ3_S", indices, sign_bits(blocks[:, 74:106])), scales)


def iq1_s(blocks: Bytes) -> Unpacked:
    """d, 32 bytes of indices, 8 words of four times three high bits, scale and sign of a shift."""
    packed = words(blocks, 34, 50, np.uint16)
    high = fields(packed, (0, 3, 6, 9), 7).reshape(len(blocks), -1)
    scales = half(blocks, 0) * (2 * ((packed >> 12) & 7) + 1).astype(np.float32)
    shifted_down = np.repeat(packed >> 15, 4, axis=-1)
    return _shifted(blocks, 2, high, shifted_down, scales)


def iq1_m(blocks: Bytes) -> Unpacked:
    """32 bytes of indices, 16 of two times three high bits and a shift, 4 words of 3-bit scales.

    The top nibbles of those words are d, the lowest nibble first.
    """
    packed = words(blocks, 48, 56, np.uint16)
    d = np.bitwise_or.reduce((packed & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16), -1)
    steps = fields(packed, (0, 3, 6, 9), 7).reshape(len(blocks), -1)
    scales = d.view(np.float16).astype(np.float32)[:, None] * (2 * steps + 1).astype(np.float32)
    nibbles = fields(blocks[:, 32:48], (0, 4), 15).reshape(len(blocks), -1)
    return _shifted(blocks, 0, nibbles & 7, nibbles >> 3, scales)


def _shifted(
    blocks: Bytes,
    at: int,
    high: Array,
    down: Array,
    scales: Array,
) -> Unpacked:
    """IQ1's weights, scale * (entry +- 1/8), as an eighth of the scale times a whole number."""
    indices = blocks[:, at : at + 32] | (high.astype(np.uint16) << 8)
    eighths = np.where(down[..., None].astype(np.bool_), np.int8(-1), np.int8(1))
    codes = codebook("IQ1_S")[indices] * np.int8(8) + eighths
    return Unpacked(codes.reshape(len(blocks), -1), scales / 8)


def _looked_up(name: str, indices: Array, negative: Array) -> Codes:
    return signed(codebook(name)[indices].reshape(len(indices), -1), negative)


def _paired_signs(packed: Array) -> Array:
    """The 256 signs of 8 words [n, 8] of four indices each."""
    indices = fields(packed, _SIGN_SHIFTS, 127).reshape(len(packed), -1)
    return sign_bits(_even_parity(indices.astype(np.uint8)))


def _even_parity(seven_bits: Bytes) -> Array:
    """Seven signs and the eighth that makes their number even."""
    folded = seven_bits ^ (seven_bits >> 4)
    folded ^= folded >> 2
    return seven_bits | (((folded ^ (folded >> 1)) & 1) << 7)


def _half_steps(blocks: Bytes, at: int) -> Array:
    """Scales d (s + 1/2) / 4 from 8 bytes of nibbles: [n, 16]."""
    steps = fields(blocks[:, at : at + 8], (0, 4), 15).reshape(len(blocks), -1)
    return half(blocks, 0) * (0.5 + steps.astype(np.float32)) / 4
