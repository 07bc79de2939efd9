"""Formats of 32 to 128 weights with a scale, and some with a minimum, a block.

Sources: ggml-common.h of ggml (Q4_0 to Q8_0, IQ4_NL, Q1_0, Q2_0); OCP Microscaling Formats 1.0
(MXFP4); NVIDIA's description of NVFP4.
"""

import numpy as np

from mtplx.quant.bits import Array, Bytes, Codes, Floats, Unpacked, fields, half, sign_bits, strided

# The sixteen values of IQ4_NL and IQ4_XS, and twice those of E2M1.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def q4_0(blocks: Bytes) -> Unpacked:
    """d, 16 bytes of nibbles, the low ones first: d (code - 8)."""
    return Unpacked(_centred(strided(blocks[:, 2:], 16, 4), 8), half(blocks, 0))


def q4_1(blocks: Bytes) -> Unpacked:
    """d, m, 16 bytes of nibbles: d code + m."""
    codes = strided(blocks[:, 4:], 16, 4).astype(np.int8)
    return Unpacked(codes, half(blocks, 0), half(blocks, 2))


def q5_0(blocks: Bytes) -> Unpacked:
    """d, the fifth bits in 4 bytes, 16 bytes of nibbles: d (code - 16)."""
    return Unpacked(_centred(_five_bits(blocks[:, 2:]), 16), half(blocks, 0))


def q5_1(blocks: Bytes) -> Unpacked:
    """d, m, the fifth bits in 4 bytes, 16 bytes of nibbles: d code + m."""
    codes = _five_bits(blocks[:, 4:]).astype(np.int8)
    return Unpacked(codes, half(blocks, 0), half(blocks, 2))


def q8_0(blocks: Bytes) -> Unpacked:
    """d, 32 signed bytes."""
    return Unpacked(blocks[:, 2:].view(np.int8), half(blocks, 0))


def iq4_nl(blocks: Bytes) -> Unpacked:
    """d, 16 bytes of nibbles that look up a value."""
    return Unpacked(IQ4_VALUES[strided(blocks[:, 2:], 16, 4)], half(blocks, 0))


def q1_0(blocks: Bytes) -> Unpacked:
    """d, a bit for each of 128 weights: d where it is set, -d elsewhere."""
    return Unpacked(
        sign_bits(blocks[:, 2:]).astype(np.int8) * np.int8(2) - np.int8(1), half(blocks, 0)
    )


def q2_0(blocks: Bytes) -> Unpacked:
    """d, two bits for each of 64 weights, the lowest first: d (code - 1)."""
    codes = fields(blocks[:, 2:], (0, 2, 4, 6), 3).reshape(len(blocks), -1)
    return Unpacked(_centred(codes, 1), half(blocks, 0))


def mxfp4(blocks: Bytes) -> Unpacked:
    """An E8M0 scale, 16 bytes of E2M1 nibbles, the low ones first."""
    return Unpacked(E2M1_DOUBLED[strided(blocks[:, 1:], 16, 4)], e8m0(blocks[:, :1]) / 2)


def nvfp4(blocks: Bytes) -> Unpacked:
    """Four UE4M3 scales, then for each 16 weights 8 bytes of E2M1 nibbles, the low ones first."""
    return Unpacked(E2M1_DOUBLED[strided(blocks[:, 4:], 8, 4)], ue4m3(blocks[:, :4]) / 2)


def e8m0(scales: Bytes) -> Floats:
    """Powers of two from 2^-127 on; 0xFF is no number."""
    is_number = scales != 0xFF
    values = np.ldexp(np.float32(1), np.where(is_number, scales, 0).astype(np.int32) - 127)
    return np.where(is_number, values, np.float32(np.nan))


def ue4m3(scales: Bytes) -> Floats:
    """E4M3 whose sign is not looked at; 0x7F is no number, though ggml reads it as zero."""
    exponent, mantissa = (scales >> 3) & 15, (scales & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7)
    values = np.where(exponent == 0, mantissa / 512, normal)
    return np.where(scales & 0x7F == 0x7F, np.nan, values).astype(np.float32)


def _centred(codes: Array, centre: int) -> Codes:
    centred: Codes = codes.view(np.int8) - np.int8(centre)
    return centred


def _five_bits(parts: Bytes) -> Array:
    """Four bytes of high bits and 16 of nibbles: codes [n, 32] up to 31."""
    high = np.unpackbits(parts[:, :4], axis=-1, bitorder="little")
    return strided(parts[:, 4:], 16, 4) | (high << 4)
