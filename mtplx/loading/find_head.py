"""Where an MTP head for a trunk without one may lie."""

from importlib.resources import files
from pathlib import Path

from mtplx.paths import data_dir

PACKAGED = "smollm2-head.safetensors"  # its trunk's fingerprint is in its metadata


def trained_head_path(trunk: str) -> Path:
    """Where `mtplx train-head` puts the head of a trunk with this fingerprint."""
    return data_dir() / "heads" / f"{trunk}.safetensors"


def find_head(model: Path, trunk: str) -> Path | None:
    """The first of: STEM.mtp.safetensors beside the model, a head trained here, a packaged one."""
    beside = model / "mtp.safetensors" if model.is_dir() else model.with_suffix(".mtp.safetensors")
    for path in (beside, trained_head_path(trunk)):
        if path.is_file():
            return path
    packaged = Path(str(files("mtplx.data") / PACKAGED))
    return packaged if packaged.is_file() and _trunk_of(packaged) == trunk else None


def _trunk_of(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return str((file.metadata() or {}).get("trunk", ""))
