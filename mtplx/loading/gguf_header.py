"""A GGUF file's plain metadata in a few milliseconds, without the libraries that loading takes.

Lists, of which the vocabulary is the longest, are passed over. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path

from mtplx.errors import CheckpointError
from mtplx.files import accessing

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


def gguf_header(path: Path) -> dict[str, object]:
    """Every metadata key with one value: str, int, float or bool. Lists are left out.

    Raises CheckpointError for a file that is no GGUF, is cut short or is stored big end first,
    and FileAccessError for one that cannot be read.
    """
    with accessing("read", path), path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file.")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data)
        except (struct.error, ValueError, KeyError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged or cut short in its metadata: {error}. Fetch it again."
            ) from error


def _read(data: mmap.mmap) -> dict[str, object]:
    version, _, num_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"version {version} is not known")
    values: dict[str, object] = {}
    offset = 24
    for _ in range(num_keys):
        name, offset = _text(data, offset)
        (kind,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if kind == _ARRAY:
            offset = _behind_array(data, offset)
        elif kind == _STRING:
            values[name], offset = _text(data, offset)
        else:
            (values[name],) = _LAYOUTS[kind].unpack_from(data, offset)
            offset += _LAYOUTS[kind].size
    return values


def _text(data: mmap.mmap, offset: int) -> tuple[str, int]:
    (length,) = _COUNT.unpack_from(data, offset)
    start, end = offset + 8, offset + 8 + length
    if end > len(data):
        raise ValueError("a text runs past its end")
    return data[start:end].decode("utf-8"), end


def _behind_array(data: mmap.mmap, offset: int) -> int:
    kind, length = struct.unpack_from("<IQ", data, offset)
    offset += 12
    if kind == _STRING:
        read = _COUNT.unpack_from
        for _ in range(length):
            offset += 8 + read(data, offset)[0]
    elif kind == _ARRAY:
        for _ in range(length):
            offset = _behind_array(data, offset)
    else:
        offset += length * _LAYOUTS[kind].size
    if offset > len(data):
        raise ValueError("a list runs past its end")
    return offset
