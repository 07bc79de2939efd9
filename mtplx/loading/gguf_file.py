"""A GGUF model's files as they are on disk: memory-mapped tensors, every one of them checked.

`mx.load` is not used: it drops tensors of types it does not know and decodes some wrongly, both
in silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.gguf_header import GgufHeader, TensorInfo, damaged, read_header
from mtplx.loading.gguf_known import gguf_parts
from mtplx.quant.bits import Bytes
from mtplx.quant.formats import BLOCK_FORMATS

# Types by their number in a file: name, weights of a block, bytes of a block.
_DENSE = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2)}
_BLOCKS = {row.number: (row.name, row.block, row.num_bytes) for row in BLOCK_FORMATS.values()}
_NO_WEIGHTS = {
    9: ("Q8_1", 32, 36),
    15: ("Q8_K", 256, 292),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
}
_KNOWN = _DENSE | _BLOCKS | _NO_WEIGHTS
DENSE_FORMATS = tuple(name for name, _, _ in _DENSE.values())
READABLE = (*DENSE_FORMATS, *BLOCK_FORMATS)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in its file. shape: rows first. data: its blocks' bytes, mapped: [num_bytes]."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def rows(self) -> Bytes:
        """Bytes [..., bytes of a row]."""
        return self.data.reshape(*self.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A model in one file or several. metadata: plain Python values, of the first file."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def open_gguf(path: Path) -> GgufFile:
    """The model that a file is, or begins; data stays mapped.

    Where the file is one of several, any of them leads to all. Raises CheckpointError for a file
    that is damaged or missing, and UnsupportedTensorError, by name, for a type that is not known.
    """
    files = gguf_parts(path)
    first, tensors = _open(files[0])
    promised = first.metadata.get("split.count", 1)
    if promised not in (0, len(files)):
        raise CheckpointError(
            f"{files[0]} is one of {promised} files by its metadata and of {len(files)} by its "
            "name. Fetch them again, under the names they had."
        )
    for file in files[1:]:
        header, more = _open(file)
        if header.metadata.get("split.count") != len(files):
            raise CheckpointError(f"{file} does not belong to {files[0]}. Fetch both again.")
        if twice := tensors.keys() & more.keys():
            raise CheckpointError(f"{min(twice)} is in {file} and before. Fetch the files again.")
        tensors |= more
    total = first.metadata.get("split.tensors.count")
    if total not in (None, len(tensors)):
        raise CheckpointError(
            f"{files[0]} promises {total} tensors in all files, and there are {len(tensors)}. "
            "Fetch them again."
        )
    return GgufFile(files[0], first.version, first.metadata, tensors)


def _open(path: Path) -> tuple[GgufHeader, dict[str, GgufTensor]]:
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is not a GGUF file: it starts with b'', not b'GGUF'.")
    data = np.memmap(path, np.uint8, mode="r")
    header = read_header(path, data.data)
    _refuse_unknown(path, header.tensors)
    tensors = {info.name: _tensor(path, info, header, data) for info in header.tensors}
    _refuse_overlaps(path, header.tensors, tensors)
    return header, tensors


def _refuse_unknown(path: Path, infos: Iterable[TensorInfo]) -> None:
    """Before anything is read, and all of them at once."""
    unknown = {info.type_number: info.name for info in infos if info.type_number not in _KNOWN}
    if unknown:
        found = "; ".join(f"number {kind} (first in {name})" for kind, name in unknown.items())
        raise UnsupportedTensorError(
            f"{path} holds tensors of types that are newer than this program, withdrawn or "
            f"damaged: {found}. Readable: {', '.join(READABLE)}."
        )


def _tensor(path: Path, info: TensorInfo, header: GgufHeader, data: Bytes) -> GgufTensor:
    name, block, num_bytes = _KNOWN[info.type_number]
    columns = info.shape[-1] if info.shape else 1
    if min(info.shape, default=1) < 1 or columns % block:
        raise damaged(
            path, f"{info.name} is {list(info.shape)}, and {name} has blocks of {block} weights"
        )
    start = header.data_start + info.offset
    end = start + prod(info.shape) // block * num_bytes
    if end > len(data):
        raise damaged(path, f"{info.name} reaches from byte {start:,} to {end:,}")
    return GgufTensor(info.name, name, info.shape or (1,), np.asarray(data[start:end]))


def _refuse_overlaps(
    path: Path, infos: Iterable[TensorInfo], tensors: Mapping[str, GgufTensor]
) -> None:
    end, before = 0, ""
    for info in sorted(infos, key=lambda info: info.offset):
        if info.offset < end:
            raise damaged(path, f"{info.name} begins inside {before}")
        end, before = info.offset + len(tensors[info.name].data), info.name
