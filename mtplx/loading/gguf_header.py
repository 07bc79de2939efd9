"""What a GGUF file says before its data: metadata and the table of tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Read here rather than through the
`gguf` package, which refuses files with types that are newer than it is and takes seconds for the
lists of a large vocabulary. Numbers are little-endian, as is every machine that MLX runs on.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mtplx.errors import CheckpointError
from mtplx.files import accessing

Buffer: TypeAlias = mmap.mmap | memoryview

_STRING, _ARRAY = 8, 9
_NUMBERS = {  # the format's number of a type -> how it is stored
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_LAYOUTS = {kind: struct.Struct(f"<{code}") for kind, code in _NUMBERS.items()}
_COUNT = struct.Struct("<Q")
_MAX_DEPTH = 8  # lists within lists; one level is all that is used
_MAX_DIMENSIONS = 4
_DAMAGE = (struct.error, ValueError, KeyError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the table has it. shape: rows first. offset: bytes into the data."""

    name: str
    type_number: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """data_start: where in the file the tensors' data begins."""

    version: int
    metadata: dict[str, object]
    tensors: tuple[TensorInfo, ...]
    data_start: int


def gguf_header(path: Path) -> dict[str, object]:
    """Every metadata key with one value: str, int, float or bool. Lists are left out.

    Takes milliseconds. Raises CheckpointError for a file that is no GGUF, is cut short or is
    stored big end first, and FileAccessError for one that cannot be read.
    """
    with accessing("read", path), path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file.")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _metadata(data, *_counts(data)[2:], with_lists=False)[0]
        except _DAMAGE as error:
            raise damaged(path, error) from error


def read_header(path: Path, data: memoryview) -> GgufHeader:
    """Everything before the data of a file, whose bytes are `data`.

    Values are plain Python ones; lists of numbers come as lists. Raises CheckpointError.
    """
    found = bytes(data[:4])
    if found != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {found!r}, not b'GGUF'.")
    try:
        version, num_tensors, num_keys, start = _counts(data)
        metadata, offset = _metadata(data, num_keys, start, with_lists=True)
        tensors, offset = _table(data, num_tensors, offset)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r}, which is no power of two")
    except _DAMAGE as error:
        raise damaged(path, error) from error
    return GgufHeader(version, metadata, tensors, -(-offset // alignment) * alignment)


def damaged(path: Path, error: Exception | str) -> CheckpointError:
    """What a person is told of a file with something wrong in it."""
    told = "it ends within its header" if isinstance(error, struct.error) else error
    return CheckpointError(
        f"{path} is damaged or cut short ({path.stat().st_size:,} bytes): {told}. Fetch it again."
    )


def _counts(data: Buffer) -> tuple[int, int, int, int]:
    """Version, tensors, keys, and where the keys begin."""
    version, num_tensors, num_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"version {version} is not known")
    return version, num_tensors, num_keys, 24


def _metadata(
    data: Buffer, num_keys: int, offset: int, *, with_lists: bool
) -> tuple[dict[str, object], int]:
    values: dict[str, object] = {}
    for _ in range(num_keys):
        name, offset = _text(data, offset)
        (kind,) = struct.unpack_from("<I", data, offset)
        offset += 4
        try:
            value, offset = _value(data, kind, offset, with_lists)
        except UnicodeDecodeError as error:
            raise ValueError(f"the metadata field {name!r} is not UTF-8 text") from error
        if kind != _ARRAY or with_lists:
            values[name] = value
    return values, offset


def _value(data: Buffer, kind: int, offset: int, with_lists: bool) -> tuple[object, int]:
    if kind == _ARRAY:
        return _list(data, offset, with_lists, _MAX_DEPTH)
    if kind == _STRING:
        return _text(data, offset)
    layout = _LAYOUTS[kind]
    return layout.unpack_from(data, offset)[0], offset + layout.size


def _text(data: Buffer, offset: int) -> tuple[str, int]:
    start = offset + 8
    end = start + _COUNT.unpack_from(data, offset)[0]
    if end > len(data):
        raise ValueError("a text runs past its end")
    return str(data[start:end], "utf-8"), end


def _list(data: Buffer, offset: int, wanted: bool, depth: int) -> tuple[list[object], int]:
    """A list, empty where it is not wanted, and what lies behind it."""
    kind, length = struct.unpack_from("<IQ", data, offset)
    offset += 12
    if length > len(data) - offset:  # every item takes a byte at least
        raise ValueError(f"a list of {length} items runs past its end")
    if kind == _STRING:
        return _texts(data, offset, length, wanted)
    if kind == _ARRAY:
        if depth == 0:
            raise ValueError("lists within lists go on without an end")
        items = []
        for _ in range(length):
            item, offset = _list(data, offset, wanted, depth - 1)
            items.append(item)
        return list(items), offset
    end = offset + length * _LAYOUTS[kind].size
    if end > len(data):
        raise ValueError(f"a list of {length} numbers runs past its end")
    if not wanted:
        return [], end
    return list(struct.unpack(f"<{length}{_NUMBERS[kind]}", data[offset:end])), end


def _texts(data: Buffer, offset: int, length: int, wanted: bool) -> tuple[list[object], int]:
    read, texts = _COUNT.unpack_from, []
    for _ in range(length):
        start = offset + 8
        offset = start + read(data, offset)[0]
        if wanted:
            texts.append(str(data[start:offset], "utf-8"))
    if offset > len(data):
        raise ValueError(f"a list of {length} texts runs past its end")
    return list(texts), offset


def _table(data: Buffer, num_tensors: int, offset: int) -> tuple[tuple[TensorInfo, ...], int]:
    infos: dict[str, TensorInfo] = {}
    for _ in range(num_tensors):
        name, offset = _text(data, offset)
        (num_dims,) = struct.unpack_from("<I", data, offset)
        if num_dims > _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {num_dims} dimensions")
        *sizes, kind, start = struct.unpack_from(f"<{num_dims}QIQ", data, offset + 4)
        offset += 4 + 8 * num_dims + 12
        if name in infos:
            raise ValueError(f"the tensor {name!r} is there twice")
        infos[name] = TensorInfo(name, kind, tuple(reversed(sizes)), start)
    return tuple(infos.values()), offset
