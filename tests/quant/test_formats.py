"""Blocks of every format are the weights that independent code makes of them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.quant.bits import Unpacked
from mtplx.quant.flat import e8m0, ue4m3
from mtplx.quant.formats import BLOCK_FORMATS, BlockFormat, expand, holds_numbers
from tests.blocks import Bytes, Floats, valid_blocks, weights_of

REAL_BLOCKS = Path(__file__).parents[1] / "assets" / "ggml-blocks.safetensors"
POOL = ThreadPoolExecutor(2)


def expanded(fmt: BlockFormat, raw: Bytes) -> Floats:
    out = np.full((len(raw), fmt.block), np.nan, np.float32)
    assert expand(fmt, raw, out, POOL)
    return out


def bits(weights: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(weights + np.float32(0)).view(np.uint32)  # zeros without a sign


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_random_blocks_are_the_weights_of_independent_code(name: str) -> None:
    """Every bit of every field at random, more blocks than are expanded at a time."""
    fmt = BLOCK_FORMATS[name]
    raw = valid_blocks(fmt, 70_000 // fmt.block)
    assert np.array_equal(bits(expanded(fmt, raw)), bits(weights_of(fmt, raw)))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_numbers_and_sizes_are_those_of_the_gguf_package(name: str) -> None:
    """As far as it has them."""
    fmt = BLOCK_FORMATS[name]
    if name in gguf.GGMLQuantizationType.__members__:
        kind = gguf.GGMLQuantizationType[name]
        assert fmt.number == kind.value
        assert (fmt.block, fmt.num_bytes) == gguf.GGML_QUANT_SIZES.get(
            kind, (fmt.block, fmt.num_bytes)
        )


# What each format loses of one real tensor (relative, root mean square), as measured with the
# `gguf` package, rounded up. Blocks that are read wrongly are off by about 1. The tensor had been
# in Q4_1 before, which is why some formats lose next to nothing.
KNOWN_LOSS = {
    "Q4_0": 0.08,
    "Q4_1": 0.001,
    "Q5_0": 0.04,
    "Q5_1": 0.02,
    "Q8_0": 0.006,
    "Q2_K": 0.28,
    "Q3_K": 0.15,
    "Q4_K": 0.001,
    "Q5_K": 0.02,
    "Q6_K": 0.02,
    "IQ1_S": 0.49,
    "IQ1_M": 0.46,
    "IQ2_XXS": 0.35,
    "IQ2_XS": 0.31,
    "IQ2_S": 0.26,
    "IQ3_XXS": 0.19,
    "IQ3_S": 0.14,
    "IQ4_NL": 0.07,
    "IQ4_XS": 0.08,
    "TQ1_0": 0.79,
    "TQ2_0": 0.79,
    "MXFP4": 0.12,
    "NVFP4": 0.11,
    "Q1_0": 0.62,
    "Q2_0": 0.71,
}


def test_real_blocks_of_llama_cpp_are_close_to_their_source() -> None:
    """Quantised there from real weights, in all 25 formats."""
    stored = mx.load(str(REAL_BLOCKS))
    assert isinstance(stored, dict)
    source = np.array(stored["F32"].view(mx.float32)).reshape(16, 256)
    for name, fmt in BLOCK_FORMATS.items():
        weights = expanded(fmt, np.array(stored[name]).reshape(-1, fmt.num_bytes)).reshape(16, 256)
        loss = np.sqrt(np.mean((weights - source) ** 2) / np.mean(source**2))
        assert loss < KNOWN_LOSS[name], name


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_scale_that_is_no_number_is_told(name: str) -> None:
    """One block among many."""
    fmt = BLOCK_FORMATS[name]
    raw = valid_blocks(fmt, 40)
    damage = {"MXFP4": [(0, 0xFF)], "NVFP4": [(2, 0x7F)], "IQ1_M": [(55, 0x70), (53, 0xC0)]}
    ends = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}
    start = ends.get(name, 0)
    for place, value in damage.get(name, [(start, 0), (start + 1, 0x7E)]):
        raw[7, place] = value
    assert holds_numbers(fmt, valid_blocks(fmt, 40))
    assert not holds_numbers(fmt, raw)
    assert not expand(fmt, raw, np.zeros((40, fmt.block), np.float32), POOL)


def test_every_scale_byte_is_the_number_it_stands_for() -> None:
    """All 256 of E8M0, and all of E4M3 without a sign, against ml_dtypes."""
    every = np.arange(256, dtype=np.uint8)
    powers = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(e8m0(every), powers, equal_nan=True)
    positive = every[:128]
    numbers = positive.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(ue4m3(positive), numbers, equal_nan=True)


def swapped(unpacked: Unpacked) -> Unpacked:
    """The two halves of each block exchanged, as by nibbles in the wrong order."""
    halves = np.split(unpacked.codes, 2, axis=-1)
    return Unpacked(np.concatenate(halves[::-1], axis=-1), unpacked.scales, unpacked.offsets)


def without_offsets(unpacked: Unpacked) -> Unpacked:
    return Unpacked(unpacked.codes, unpacked.scales)


@pytest.mark.parametrize("mutate", [swapped, without_offsets])
def test_wrong_blocks_are_seen(mutate: object) -> None:
    """The comparison has teeth: order of codes, forgotten minima."""
    fmt = BLOCK_FORMATS["Q4_1"]
    raw = valid_blocks(fmt, 100)
    wrong = replace(fmt, unpack=lambda b: mutate(fmt.unpack(b)))  # type: ignore[operator]
    assert not np.array_equal(expanded(wrong, raw), weights_of(fmt, raw))
