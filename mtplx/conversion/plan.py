"""What a conversion writes: which tensors, packed how, into which files.

A plan is made from shapes and dtypes alone, and is the same each time, so that a conversion that
was stopped can be taken up again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtplx.errors import UsageError
from mtplx.models.quantisation import AFFINE, Packing

DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
SHARD_BYTES = 2 << 30  # what a stopped conversion has to write again at most
HEAD_FILE = "mtp"  # mlx-lm loads model*.safetensors and never meets the head


@dataclass(frozen=True, slots=True)
class Options:
    """What a user chose. None keeps matrices as they are; dtype None keeps that of each tensor."""

    bits: int | None = None
    group_size: int = 64
    head_bits: int | None = None
    dtype: str | None = None
    shard_bytes: int = SHARD_BYTES

    def trunk_packing(self) -> Packing | None:
        return None if self.bits is None else _known(Packing(self.bits, self.group_size))

    def head_packing(self) -> Packing | None:
        """The head's own. It is small, and what it loses is lost in acceptance: 8 bits, unless
        the trunk is not packed either."""
        bits = self.head_bits or (8 if self.bits is not None else None)
        return None if bits is None else _known(Packing(bits, self.group_size))


@dataclass(frozen=True, slots=True)
class Branch:
    """A trunk or a head: the module tree and the tensors that belong into it.

    model: an mlx.nn.Module, all dense. weights: by the names of its tree, lazy, as its own
    `sanitize` leaves them. prefix: what stands before these names in the files that are written.
    """

    model: Any
    weights: dict[str, mx.array]
    prefix: str
    file_stem: str
    quant_predicate: Callable[[str, Any], Any] | None = None
    cast_predicate: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor as a file holds it. dtype: a name of the safetensors format."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """One tensor of a branch and what becomes of it.

    source: its name in the branch. path: the matrix in the files, without `.weight`.
    """

    source: str
    path: str
    packing: Packing | None
    dtype: str | None
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file and what it holds, in this order."""

    name: str
    units: tuple[Unit, ...]

    @property
    def num_bytes(self) -> int:
        return sum(unit.num_bytes for unit in self.units)


def plan_branch(
    branch: Branch, packing: Packing | None, dtype: str | None, shard_bytes: int
) -> list[PlannedFile]:
    """The files of a branch, none of whose matrices is packed yet."""
    modules = dict(branch.model.named_modules())
    units = [
        _unit(branch, name, modules, packing, dtype) for name in sorted(branch.weights, key=_order)
    ]
    shards = list(_shards(units, shard_bytes))
    if len(shards) == 1:
        return [PlannedFile(f"{branch.file_stem}.safetensors", shards[0])]
    return [
        PlannedFile(f"{branch.file_stem}-{i:05d}-of-{len(shards):05d}.safetensors", shard)
        for i, shard in enumerate(shards, start=1)
    ]


def make_parts(unit: Unit, source: mx.array) -> list[mx.array]:
    """The arrays of a unit's parts, lazy."""
    dense = dense_array(unit, source)
    if unit.packing is None:
        return [dense]
    packing = unit.packing
    return list(mx.quantize(dense, packing.group_size, packing.bits, packing.mode))


def dense_array(unit: Unit, source: mx.array) -> mx.array:
    """What a unit stands for, before it is packed, lazy."""
    return source if unit.dtype is None else source.astype(DTYPES[unit.dtype])


def plan_digest(files: Iterable[PlannedFile]) -> str:
    """A hash of all that files are to hold, by which a plan is known again."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(repr(file).encode())
    return digest.hexdigest()


def _unit(
    branch: Branch,
    name: str,
    modules: Mapping[str, Any],
    packing: Packing | None,
    dtype: str | None,
) -> Unit:
    array, path = branch.weights[name], name.removesuffix(".weight")
    cast = dtype if dtype is not None and _is_cast(branch, name, array) else None
    own = _packing(branch, path, modules, packing) if name.endswith(".weight") else None
    unit = Unit(name, branch.prefix + path, own, cast, ())
    arrays = make_parts(unit, array)
    names = ("weight", "scales", "biases") if own is not None else (None,)
    parts = tuple(
        Part(
            branch.prefix + name if part is None else f"{branch.prefix}{path}.{part}",
            _TYPES[made.dtype],
            tuple(made.shape),
            made.nbytes,
        )
        for part, made in zip(names, arrays, strict=True)
    )
    return Unit(unit.source, unit.path, own, cast, parts)


def _is_cast(branch: Branch, name: str, array: mx.array) -> bool:
    """Some tensors of some models have to stay in float32, which mlx-lm's models say."""
    allowed = branch.cast_predicate is None or branch.cast_predicate(name)
    return allowed and mx.issubdtype(array.dtype, mx.floating)


def _packing(
    branch: Branch, path: str, modules: Mapping[str, Any], packing: Packing | None
) -> Packing | None:
    """How a matrix is packed; None for what is no matrix, or whose rows have no whole groups."""
    module = modules.get(path)
    if packing is None or not hasattr(module, "to_quantized"):
        return None
    answer = True if branch.quant_predicate is None else branch.quant_predicate(path, module)
    own = Packing(answer["bits"], answer["group_size"]) if isinstance(answer, dict) else packing
    width = branch.weights[f"{path}.weight"].shape[-1]
    return own if answer and width % own.group_size == 0 else None


def _shards(units: Iterable[Unit], shard_bytes: int) -> Iterator[tuple[Unit, ...]]:
    shard: list[Unit] = []
    for unit in units:
        if shard and sum(held.num_bytes for held in shard) + unit.num_bytes > shard_bytes:
            yield tuple(shard)
            shard = []
        shard.append(unit)
    yield tuple(shard)


def _known(packing: Packing) -> Packing:
    if packing in AFFINE:
        return packing
    raise UsageError(
        f"MLX has no packing of {packing}. It has 1, 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 "
        "and 128."
    )


def _order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


_TYPES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.uint8: "U8",
    mx.int64: "I64",
    mx.bool_: "BOOL",
}
