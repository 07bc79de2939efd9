"""A checkpoint with other tensors in place of the matrices that are packed in a foreign manner.

Where matrices may stay as they are, something stands in for each until it is found out where it
belongs in a model (`models/packed_weights.py`). What has no place as it is, is expanded.
"""

import json
import re
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.kernels.packing import float_weight
from mtplx.kernels.source import Maker, metal
from mtplx.kernels.tiling import Tiling
from mtplx.loading.foreign_matrices import Packed, packed_matrices
from mtplx.loading.foreign_packing import (
    FP8_BLOCK,
    Fault,
    expanded,
    faults,
    kept,
    refuse,
    turned,
)
from mtplx.loading.stored_tensors import read_config
from mtplx.models.family import Tensors
from mtplx.models.packed_matrix import PackedMatrix, PackedPart
from mtplx.models.packed_weights import REARRANGED, UNLIKE, PackedWeights, Placement

# Scales of activations and of the attention cache, which stay as they are computed.
_NOT_OF_WEIGHTS = re.compile(
    r"(\.(input|input_global|output|activation|[qkv])|_proj_(input|activation))_scale$"
)
_AT_ONCE = 256  # faults that are looked for in one evaluation, which waits for the device
_EXPERT = re.compile(r"\.experts\.\d+\.")
_FLOATS = (mx.float32, mx.float16, mx.bfloat16)
# What mlx-lm's code says of tensors that it does not expect.
MLX_LM_ERRORS = (
    *(ValueError, OSError, LookupError, RuntimeError, TypeError, AttributeError, ArithmeticError),
    AssertionError,
)


@dataclass(frozen=True, slots=True)
class Manner:
    """What becomes of foreign packed matrices.

    dtype: of those that are expanded. keep: whether those that our kernels multiply stay as they
    are. why: what is to be told where they do not. maker: who runs the kernels. tiling: which tiles
    they take. block: rows and columns of FP8's blocks. reads: whether their numbers are looked at,
    which reads them; a description does without.
    """

    dtype: mx.Dtype = mx.float32
    keep: bool = False
    why: str | None = None
    maker: Maker = metal
    tiling: Tiling | None = None
    block: tuple[int, int] = FP8_BLOCK
    reads: bool = True


class Form(Enum):
    """What stands for a matrix while a model takes it in."""

    WHOLE = "a matrix of its shape"
    ROWS = "the numbers of its rows"
    COLUMNS = "the numbers of its columns, as those of rows that lie the other way"
    EXPANDED = "its weights"


@dataclass(slots=True)
class Foreign:
    """A foreign packed matrix.

    whole: its weights, lazy. matrix: as it is, where our kernels multiply it so. why: it is
    expanded, where that is to be told. turned: the matrix with rows for columns, as some files have
    stacks of experts.
    """

    whole: mx.array
    matrix: PackedMatrix | None
    form: Form
    why: str | None
    turned: PackedMatrix | None = None

    def turn(self) -> None:
        assert self.turned is not None
        self.form, self.matrix, self.turned = Form.COLUMNS, self.turned, None

    def expand(self, why: str | None) -> None:
        self.form, self.why = Form.EXPANDED, why


@dataclass(frozen=True, slots=True)
class ForeignTensors:
    """A checkpoint's tensors: foreign packed matrices by the name of the tensor that they become,
    and all others."""

    others: Tensors
    matrices: dict[str, Foreign] = field(default_factory=dict)

    def expanded(self) -> Tensors:
        """All of them, lazy."""
        return self.others | {name: each.whole for name, each in self.matrices.items()}

    def without(self, names: Set[str]) -> "ForeignTensors":
        """Those that are not among these."""
        return ForeignTensors(
            {name: array for name, array in self.others.items() if name not in names},
            {name: each for name, each in self.matrices.items() if name not in names},
        )

    def standing(self, packed: PackedWeights) -> Tensors:
        """All of them, with what stands for packed ones."""
        standing = dict(self.others)
        for name, each in self.matrices.items():
            standing[name] = each.whole
            if each.matrix is not None and each.form is Form.WHOLE:
                standing[name] = packed.stand_in(PackedPart(each.matrix), name)
            elif each.matrix is not None and each.form is not Form.EXPANDED:
                numbers = packed.row_numbers(each.matrix, name)
                turned = each.form is Form.COLUMNS
                standing[name] = mx.swapaxes(numbers, -1, -2) if turned else numbers
        return standing


def foreign_tensors(tensors: Tensors, manner: Manner) -> ForeignTensors:
    """The foreign packed matrices among a checkpoint's tensors, their scales taken out.

    Raises CheckpointError, naming the tensor, where a scale is missing or no number, and
    UnsupportedTensorError for a packing that is not known.
    """
    matrices, stored = {}, set[str]()
    possible: list[Fault] = []
    for packed in packed_matrices(tensors):
        matrices[packed.name] = _foreign(packed, manner)
        stored.update(packed.stored)
        possible += faults(packed) if manner.reads else ()
        if len(possible) > _AT_ONCE:
            refuse(possible)
            possible = []
    refuse(possible)
    if not matrices:
        return ForeignTensors(tensors)
    others = {
        name: array
        for name, array in tensors.items()
        if name not in stored and not _NOT_OF_WEIGHTS.search(name)
    }
    found = ForeignTensors(others, matrices)
    _pack_experts_beside(found, manner)
    return found


def _foreign(packed: Packed, manner: Manner) -> Foreign:
    foreign = Foreign(
        expanded(packed, manner.block).astype(manner.dtype), None, Form.EXPANDED, manner.why
    )
    if manner.keep:
        weight = kept(packed, manner.block)
        foreign.matrix = PackedMatrix(weight, manner.dtype, manner.maker, manner.tiling)
        in_parts = weight.codes.ndim > 2 or _EXPERT.search(packed.base)
        foreign.form = Form.ROWS if in_parts else Form.WHOLE
        other = turned(packed, manner.block) if weight.codes.ndim > 2 else None
        foreign.turned = None if other is None else replace(foreign.matrix, weight=other)
    return foreign


def _pack_experts_beside(found: ForeignTensors, manner: Manner) -> None:
    """The experts that are dense beside packed ones of their layer: as they are, they are a packing
    like any other, and no stack of both would have to be dense."""

    def layer(name: str) -> str:
        return _EXPERT.sub(".experts.*.", name)

    if not any(each.matrix for each in found.matrices.values()):
        return
    names = sorted((n for n in {**found.others, **found.matrices} if _EXPERT.search(n)), key=layer)
    for _, group in groupby(names, layer):
        members = list(group)
        dense = [name for name in members if name in found.others]
        if len(dense) == len(members):
            continue
        if any(found.others[name].dtype not in _FLOATS for name in dense):
            for name in found.matrices.keys() & set(members):
                found.matrices[name].expand(UNLIKE)
            continue
        for name in dense:
            whole = found.others.pop(name)
            matrix = PackedMatrix(float_weight(whole), manner.dtype, manner.maker, manner.tiling)
            found.matrices[name] = Foreign(whole, matrix, Form.ROWS, None)


def placed(foreign: ForeignTensors, named: Callable[[Tensors], tuple[Any, Tensors]]) -> Placement:
    """Where packed matrices belong in a model, and its other weights.

    named: makes of tensors a model, and the weights by the names of its tree. It is asked again
    where that shows that a matrix has no place as it is, which is then expanded.
    Raises what `named` does.
    """
    while True:
        packed = PackedWeights()
        try:
            model, weights = named(foreign.standing(packed))
        except MLX_LM_ERRORS:
            if not _with_less_as_numbers(foreign):
                raise
            continue
        placement = packed.places(model, weights)
        if not placement.failed:
            return placement
        for name, why in placement.failed.items():
            each = foreign.matrices[name]
            if each.form is Form.WHOLE and why == REARRANGED:
                each.form = Form.ROWS
            elif each.turned is not None and why == REARRANGED:
                each.turn()
            else:
                each.expand(why)


def _with_less_as_numbers(foreign: ForeignTensors) -> bool:
    """Put something else in the place of numbers that mlx-lm's code stumbled over; whether there
    were any."""
    numbers = (Form.ROWS, Form.COLUMNS)
    standing = [each for each in foreign.matrices.values() if each.form in numbers]
    turnable = [each for each in standing if each.turned is not None]
    for each in turnable:
        each.turn()
    for each in [] if turnable else standing:
        each.expand(REARRANGED)
    return bool(standing)


def told_expanded(foreign: ForeignTensors) -> str | None:
    """Which packed matrices could not stay as they are and why, in one line; None where all did."""
    reasons: dict[str, list[str]] = {}
    for name, each in foreign.matrices.items():
        if each.why is not None:
            reasons.setdefault(each.why, []).append(name.removesuffix(".weight"))
    if not reasons:
        return None
    parts = [f"{len(names)} such as {min(names)} ({why})" for why, names in reasons.items()]
    return f"Some packed matrices are expanded: {'; '.join(parts)}."


def fp8_block(config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale in blocks of FP8, as config.json has it."""
    stated = (config.get("quantization_config") or {}).get("weight_block_size")
    if stated is None:
        return FP8_BLOCK
    if (
        not isinstance(stated, list)
        or len(stated) != 2
        or not all(type(each) is int and 0 < each < 2**31 for each in stated)
    ):
        raise CheckpointError(
            f"config.json has weight_block_size = {stated!r}; two positive numbers are needed. "
            "Fetch the checkpoint again."
        )
    return stated[0], stated[1]


def ignored_directives(path: Path) -> list[str]:
    """What a folder asks for beyond its weights and is not done, one line each."""
    section = read_config(path).get("quantization_config") or {}
    # ModelOpt's file, which may be there.
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        section |= json.loads((path / "hf_quant_config.json").read_bytes())["quantization"]
    asked = section.get("kv_cache_quant_algo") or section.get("kv_cache_scheme")
    if not asked:
        return []
    what = asked if isinstance(asked, str) else "kv_cache_scheme"
    return [
        f"The checkpoint asks for a packed attention cache ({what}); it is kept as it is computed."
    ]
