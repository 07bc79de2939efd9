"""Writing a safetensors file tensor by tensor, so that one at a time is in memory.

The layout is that of the safetensors format: the header's length in 8 bytes, the header as JSON,
the tensors' bytes in the header's order.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import mlx.core as mx

from mtplx.conversion.plan import Part
from mtplx.files import put_in_place

ALIGNMENT = 8
CHUNK = 1 << 24


def write_tensors(
    path: Path, parts: Iterable[Part], arrays: Iterator[mx.array], metadata: dict[str, str]
) -> str:
    """Write a file under its name once it is whole and on the disk; gives its SHA-256.

    arrays: one for each of `parts`, in order; each is evaluated when its turn comes and let go.
    Raises OSError.
    """
    half = path.with_name(f".{path.name}.part")
    digest = hashlib.sha256()
    with half.open("wb") as file:
        for block in _blocks(list(parts), arrays, metadata):
            file.write(block)
            digest.update(block)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(half, path)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _blocks(
    parts: list[Part], arrays: Iterator[mx.array], metadata: dict[str, str]
) -> Iterator[bytes | memoryview]:
    yield _header(parts, metadata)
    for part, array in zip(parts, arrays, strict=True):
        assert array.nbytes == part.num_bytes, part.name
        content = memoryview(mx.contiguous(array.reshape(-1)).view(mx.uint8))  # type: ignore[arg-type]  # MLX's arrays have the buffer protocol
        for start in range(0, len(content), CHUNK):
            yield content[start : start + CHUNK]


def _header(parts: list[Part], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for part in parts:
        start, end = end, end + part.num_bytes
        header[part.name] = {
            "dtype": part.dtype,
            "shape": part.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
