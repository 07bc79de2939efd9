"""What is told of a checkpoint."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mtplx.loading.memory import MemoryNeed
from mtplx.loading.tensor_list import TensorEntry
from mtplx.speculation import HiddenStage


@dataclass(frozen=True, slots=True)
class TensorKind:
    """All tensors of one type. held_bytes: what a model holds for them; scales count with their
    matrices. readable: whether this program can load the type."""

    type: str
    count: int
    disk_bytes: int
    held_bytes: int
    readable: bool


@dataclass(frozen=True, slots=True)
class NativeHeadFacts:
    """An MTP head that a checkpoint brings along.

    hidden_stage: which of the trunk's hidden states feeds it. files: where its tensors are.
    embedded: whether tensors of the trunk are in these files, too. num_bytes: in memory, without
    what it only repeats of the trunk's. note: where config.json says something else, in one line.
    """

    num_modules: int
    hidden_stage: HiddenStage
    files: tuple[Path, ...]
    embedded: bool
    num_bytes: int
    note: str | None


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint as its headers tell it; None where they do not.

    num_parameters: weights, packed ones counted as what they stand for.
    trunk: the fingerprint by which heads and profiles know this model.
    head: the file of the MTP head that loading would take, where that is known without building it.
    num_mtp_tensors: tensors of a head inside the checkpoint itself.
    family: what its own MTP head is known by. native_head: that head. no_head_reason: why there is
        none, in one line, where that is known without loading.
    expanded: which packed matrices cannot stay as they are on a GPU and why, in one line.
    """

    path: Path
    container: str
    architecture: str | None
    name: str | None
    licence: str | None
    num_parameters: int | None
    context_length: int | None
    vocab_size: int | None
    trunk: str
    head: Path | None
    num_mtp_tensors: int
    kinds: tuple[TensorKind, ...]
    need: MemoryNeed
    family: str | None = None
    native_head: NativeHeadFacts | None = None
    no_head_reason: str | None = None
    expanded: str | None = None


def kinds_of(
    entries: Iterable[TensorEntry],
    held: Callable[[TensorEntry], int],
    readable: tuple[str, ...] | None,
) -> tuple[TensorKind, ...]:
    """The tensors by their types, those that take most first. readable: types; None is all."""
    grouped: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        grouped.setdefault(entry.type, []).append(entry)
    kinds = [
        TensorKind(
            type=kind,
            count=len(group),
            disk_bytes=sum(entry.num_bytes for entry in group),
            held_bytes=sum(map(held, group)),
            readable=readable is None or kind in readable,
        )
        for kind, group in grouped.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.disk_bytes))


def text_or_none(value: object) -> str | None:
    """A metadata value where it is a text that says something."""
    return value if isinstance(value, str) and value else None


def number_or_none(value: object) -> int | None:
    """A metadata value where it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
