"""Parts of blocks: half-precision numbers, fields of bits, signs. All for n blocks at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]  # numpy's types lose the width of what is computed
Bytes: TypeAlias = npt.NDArray[np.uint8]
Codes: TypeAlias = npt.NDArray[np.int8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """n blocks of B weights in G groups: weight = scale of its group * code + offset of its group.

    codes: [n, B] int8, whole numbers. scales: [n, G] float32. offsets: [n, G] float32, or None
    where they are zero. Product and sum are rounded to float32 one after the other.
    """

    codes: Codes
    scales: Array
    offsets: Array | None = None


def half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block: [n, 1] float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def words(blocks: Bytes, start: int, end: int, dtype: type[np.unsignedinteger]) -> Array:
    """Bytes start to end of each block as little-endian words: [n, W]."""
    little: Array = np.ascontiguousarray(blocks[:, start:end]).view(
        np.dtype(dtype).newbyteorder("<")
    )
    return little


def fields(packed: Array, shifts: Sequence[int], mask: int) -> Array:
    """Equally wide fields of words [n, W], those of a word side by side: [n, W, len(shifts)]."""
    shifted: Array = packed[..., None] >> np.array(shifts, packed.dtype)
    masked: Array = shifted & packed.dtype.type(mask)
    return masked


def strided(packed: Bytes, run: int, width: int) -> Bytes:
    """Fields of `width` bits where each run of so many bytes holds its weights field by field.

    packed [n, W] -> [n, W * 8 / width]: the lowest fields of the first `run` bytes, then their
    next ones, and so on; then those of the next run.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), -1, 1, run) >> shifts
    runs &= np.uint8(2**width - 1)
    return runs.reshape(len(packed), -1)


def signed(magnitudes: Array, negative: Array) -> Codes:
    """Magnitudes [n, ...] as int8, negated where bits say so."""
    plain = magnitudes.astype(np.int8)
    return np.where(negative, -plain, plain)


def sign_bits(signs: Bytes) -> npt.NDArray[np.bool_]:
    """Bytes [n, W] as bits, the lowest first: [n, 8 W]."""
    return np.unpackbits(signs, axis=-1, bitorder="little").astype(np.bool_)
