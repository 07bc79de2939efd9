"""Formats of 256 weights: a few scales of few bits each under one or two of float16.

Source: ggml-common.h and ggml-quants.c of ggml.
"""

import numpy as np

from mtplx.quant.bits import Bytes, Unpacked, fields, half, strided, words
from mtplx.quant.flat import IQ4_VALUES


def q2_k(blocks: Bytes) -> Unpacked:
    """16 bytes of scale and minimum, 64 bytes of two bits, d, dmin."""
    nibbles = blocks[:, :16]
    codes = strided(blocks[:, 16:80], 32, 2)
    scales = half(blocks, 80) * (nibbles & 15)
    return Unpacked(codes.view(np.int8), scales, -(half(blocks, 82) * (nibbles >> 4)))


def q3_k(blocks: Bytes) -> Unpacked:
    """32 bytes of high bits, 64 of two low bits, 12 of scales, d. A clear high bit takes off 4."""
    high = strided(blocks[:, :32], 32, 1)
    codes = strided(blocks[:, 32:96], 32, 2).view(np.int8) - ((high ^ 1) << 2).view(np.int8)
    packed = blocks[:, 96:108]
    low = strided(packed[:, :8], 8, 4)
    scales = (low | (strided(packed[:, 8:], 4, 2) << 4)).view(np.int8) - np.int8(32)
    return Unpacked(codes, half(blocks, 108) * scales)


def q4_k(blocks: Bytes) -> Unpacked:
    """d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles in runs of 32."""
    scales, minima = _scales_and_minima(blocks)
    codes = strided(blocks[:, 16:], 32, 4)
    return Unpacked(codes.view(np.int8), half(blocks, 0) * scales, -(half(blocks, 2) * minima))


def q5_k(blocks: Bytes) -> Unpacked:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    scales, minima = _scales_and_minima(blocks)
    codes = strided(blocks[:, 48:], 32, 4) | (strided(blocks[:, 16:48], 32, 1) << 4)
    return Unpacked(codes.view(np.int8), half(blocks, 0) * scales, -(half(blocks, 2) * minima))


def q6_k(blocks: Bytes) -> Unpacked:
    """128 bytes of nibbles in runs of 64, 64 of two high bits, 16 signed scales, d."""
    codes = strided(blocks[:, :128], 64, 4) | (strided(blocks[:, 128:192], 32, 2) << 4)
    scales = blocks[:, 192:208].view(np.int8)
    return Unpacked(codes.view(np.int8) - np.int8(32), half(blocks, 208) * scales)


def iq4_xs(blocks: Bytes) -> Unpacked:
    """d, two high bits of 8 scales in a word, 4 bytes of their nibbles, 128 bytes of codes."""
    high = fields(words(blocks, 2, 4, np.uint16), range(0, 16, 2), 3).reshape(len(blocks), -1)
    low = fields(blocks[:, 4:8], (0, 4), 15).reshape(len(blocks), -1)
    scales = (low | (high.astype(np.uint8) << 4)).view(np.int8) - np.int8(32)
    return Unpacked(IQ4_VALUES[strided(blocks[:, 8:], 16, 4)], half(blocks, 0) * scales)


def tq1_0(blocks: Bytes) -> Unpacked:
    """Five base-3 digits a byte, the first the highest: 32 bytes, 16 bytes, then 4 of four; d."""
    runs = [(blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)]
    digits = [
        # A byte is the fraction ceil(256 x / 3^5), and a digit what a multiplication carries out.
        (part[:, None] * (3 ** np.arange(count, dtype=np.uint8))[:, None]).reshape(len(blocks), -1)
        for part, count in runs
    ]
    codes = (np.concatenate(digits, axis=-1).astype(np.uint16) * 3) >> 8
    return Unpacked(codes.astype(np.int8) - np.int8(1), half(blocks, 52))


def tq2_0(blocks: Bytes) -> Unpacked:
    """64 bytes of two bits in runs of 32, d: d (code - 1)."""
    return Unpacked(strided(blocks[:, :64], 32, 2).view(np.int8) - np.int8(1), half(blocks, 64))


def _scales_and_minima(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 scales and 8 minima of six bits in 12 bytes from byte 4 on."""
    low, high, mixed = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([low & 63, (mixed & 15) | ((low >> 2) & 48)], axis=-1)
    minima = np.concatenate([high & 63, (mixed >> 4) | ((high >> 2) & 48)], axis=-1)
    return scales, minima
