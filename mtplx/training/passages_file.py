"""Passages on disk: one .npz a chunk, complete or absent, so that work can be taken up again."""

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mtplx.errors import TrainingError
from mtplx.files import accessing, replacing
from mtplx.training.own_text import Passage

# What reading an archive of arrays raises when it is cut short, or something else altogether.
_NOT_A_CHUNK = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    IndexError,
    AttributeError,
    zipfile.BadZipFile,
)


def write_passages(path: Path, passages: Sequence[Passage]) -> None:
    """Store passages of any lengths, at least one. Raises FileAccessError."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez(
            file,
            lengths=np.array([len(p.token_ids) for p in passages]),
            token_ids=np.concatenate([p.token_ids for p in passages]),
            hidden=np.concatenate([p.hidden for p in passages]),
            kinds=np.array([p.kind for p in passages]),
        )


def read_passages(paths: Iterable[Path]) -> list[Passage]:
    """All passages of some chunks. TrainingError for a file that is not one."""
    return [passage for path in paths for passage in _read_chunk(path)]


def _read_chunk(path: Path) -> list[Passage]:
    with accessing("read", path):
        file = path.open("rb")
    try:
        with file, np.load(file) as chunk:
            lengths, token_ids = chunk["lengths"], chunk["token_ids"]
            hidden, kinds = chunk["hidden"], chunk["kinds"].tolist()
        ends = np.cumsum(lengths).tolist()
        whole = len(token_ids) == len(hidden) == ends[-1] and len(kinds) == len(ends)
        if not whole or hidden.dtype != np.float16 or token_ids.dtype != np.int32:
            raise ValueError("its arrays do not belong together")
    except _NOT_A_CHUNK as error:
        raise TrainingError(
            f"{path} is not a whole chunk of passages: {error}. Delete it, and it is made anew."
        ) from error
    return [
        Passage(token_ids[start:end], hidden[start:end], kind)
        for kind, start, end in zip(kinds, [0, *ends[:-1]], ends, strict=True)
    ]
