"""Where an MTP head for a trunk without one may lie."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from mtplx.errors import FileAccessError
from mtplx.paths import data_dir

PACKAGED = "smollm2-head.safetensors"  # its trunk's fingerprint is in its metadata


def trained_head_path(trunk: str) -> Path:
    """Where `mtplx train-head` puts the head of a trunk with this fingerprint."""
    return data_dir() / "heads" / f"{trunk}.safetensors"


def head_candidates(model: Path, trunk: str) -> Iterator[Path]:
    """What may hold a head for this trunk, the first choice first: NAME.mtp.safetensors beside the
    model's file or folder, a head trained here, a packaged one."""
    stem = model.name if model.is_dir() else model.stem
    beside = model.with_name(f"{stem}.mtp.safetensors")
    if beside.is_file():
        yield beside
    try:
        trained = trained_head_path(trunk)
    except FileAccessError:  # a user without a home folder has trained none
        trained = beside
    if trained != beside and trained.is_file():
        yield trained
    packaged = Path(str(files("mtplx.data") / PACKAGED))
    if packaged.is_file() and _trunk_of(packaged) == trunk:
        yield packaged


def unusable_head(error: Exception | str) -> str:
    """Why there is no drafting, in one line, where a head is there."""
    return f"the MTP head that is there cannot be used: {str(error).rstrip('.')}."


def find_head(model: Path, trunk: str) -> Path | None:
    """The first candidate, whether or not it turns out to be of use."""
    return next(head_candidates(model, trunk), None)


def _trunk_of(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return str((file.metadata() or {}).get("trunk", ""))
