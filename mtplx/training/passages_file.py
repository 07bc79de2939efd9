"""Passages on disk: one .npz a chunk, complete or absent, so that work can be taken up again."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mtplx.errors import TrainingError
from mtplx.files import replacing
from mtplx.training.own_text import Passage


def write_passages(path: Path, passages: Sequence[Passage]) -> None:
    """Store passages of any lengths."""
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
    passages: list[Passage] = []
    for path in paths:
        try:
            with np.load(path) as chunk:
                ends = np.cumsum(chunk["lengths"])
                token_ids, hidden = chunk["token_ids"], chunk["hidden"]
                kinds = chunk["kinds"].tolist()
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(
                f"{path} is not a chunk of passages: {error}. Delete it."
            ) from error
        starts = [0, *ends[:-1].tolist()]
        for kind, start, end in zip(kinds, starts, ends.tolist(), strict=True):
            passages.append(Passage(token_ids[start:end], hidden[start:end], kind))
    return passages
