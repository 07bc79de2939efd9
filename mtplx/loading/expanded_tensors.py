"""A checkpoint with plain matrices in place of those that are packed in a foreign manner."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.kernels.source import Maker, metal
from mtplx.loading.foreign_packing import (
    CODES,
    FP8_BLOCK,
    SCALES,
    Packed,
    expanded,
    kept,
    packed_matrices,
)
from mtplx.loading.stored_tensors import read_config
from mtplx.models.family import Tensors
from mtplx.models.packed import PackedMatrix, PackedPart, PackedWeights

# Scales of activations and of the attention cache, which stay as they are computed.
_NOT_OF_WEIGHTS = re.compile(r"\.(input_scale|input_global_scale|output_scale|[qkv]_scale)$")
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class Manner:
    """What becomes of foreign packed matrices.

    dtype: of those that are expanded. packed: where those go that our kernels multiply as they
    are; None expands all. maker: who runs the kernels. block: rows and columns of FP8's blocks.
    """

    dtype: mx.Dtype = mx.float32
    packed: PackedWeights | None = None
    maker: Maker = metal
    block: tuple[int, int] = FP8_BLOCK


def plain_tensors(tensors: Tensors, manner: Manner) -> Tensors:
    """Every foreign packed matrix as a lazy one under its plain name, its scales taken out.

    Raises CheckpointError, naming the tensor, where a scale is missing or no number, and
    UnsupportedTensorError for a packing that is not known.
    """
    plain = {packed.base: _plain(packed, manner) for packed in packed_matrices(tensors)}
    if not plain:
        return tensors
    kept_names: Tensors = {}
    for name, array in tensors.items():
        base, ending = _parted(name)
        if base in plain and ending in CODES:
            kept_names[f"{base}.weight"] = plain[base]
        elif base not in plain and not _NOT_OF_WEIGHTS.search(name):
            kept_names[name] = array
    return kept_names


def _plain(packed: Packed, manner: Manner) -> mx.array:
    """A matrix, or what stands in for it. Experts that lie apart are stacked later, so expanded."""
    whole = expanded(packed, manner.block)  # lazy, but what is wrong with it is told here
    if manner.packed is not None and not _EXPERT.search(packed.base):
        weight = kept(packed, manner.block)
        if weight is not None:
            matrix = PackedMatrix(weight, manner.dtype, manner.maker)
            return manner.packed.stand_in(PackedPart(matrix))
    return whole.astype(manner.dtype)


def _parted(name: str) -> tuple[str, str]:
    """A name without the ending that tells what it is of a matrix, and that ending."""
    ending = next((each for each in (*CODES, *SCALES) if name.endswith(each)), "")
    return name.removesuffix(ending), ending


def fp8_block(config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale in blocks of FP8, as config.json has it."""
    stated = (config.get("quantization_config") or {}).get("weight_block_size")
    if isinstance(stated, list) and len(stated) == 2:
        return int(stated[0]), int(stated[1])
    return FP8_BLOCK


def ignored_directives(path: Path) -> list[str]:
    """What a folder asks for beyond its weights and is not done, one line each."""
    section = read_config(path).get("quantization_config") or {}
    with suppress(OSError, ValueError, KeyError, TypeError):  # ModelOpt's file, which may be there
        section |= json.loads((path / "hf_quant_config.json").read_bytes())["quantization"]
    asked = section.get("kv_cache_quant_algo") or section.get("kv_cache_scheme")
    if not asked:
        return []
    what = asked if isinstance(asked, str) else "kv_cache_scheme"
    return [
        f"The checkpoint asks for a packed attention cache ({what}); it is kept as it is computed."
    ]
