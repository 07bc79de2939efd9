"""From what a user calls a model to files on this machine: a path, an alias or a hub id."""

import difflib
import re
from pathlib import Path

from mtplx.errors import FileAccessError, ModelNotFoundError
from mtplx.loading.catalogue import ALIASES
from mtplx.loading.fetch import fetch
from mtplx.loading.hub import hub_files
from mtplx.loading.sources import Progress

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(?:/[\w./-]+\.gguf)?", re.ASCII)


def resolve(model: str, *, progress: Progress | None = None) -> Path:
    """The GGUF file, or the folder with config.json and safetensors, that `model` names.

    model: what exists on disk under that name comes first; then an alias ("smollm2"); then a
        Hugging Face id, owner/name or owner/name/FILE.gguf. What is already on this machine is
        found without the network.

    Raises ModelNotFoundError where it leads nowhere, DownloadError where it cannot be fetched and
    FileAccessError where it cannot be read or stored.
    """
    if not model.strip():
        raise ModelNotFoundError(f"The model's name is empty. {_WAYS}")
    path = Path(model).expanduser()
    if _exists(path):
        return checkpoint_at(path)
    if model in ALIASES:
        return fetch(ALIASES[model], progress=progress)
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        owner, name, *file = model.split("/", 2)
        return checkpoint_at(hub_files(f"{owner}/{name}", file[0] if file else None))
    raise ModelNotFoundError(_nothing_there(model, path))


def checkpoint_at(path: Path) -> Path:
    """The GGUF file or safetensors folder at a path that exists.

    A folder with neither config.json nor safetensors stands for the only GGUF file in it.
    Raises ModelNotFoundError, saying what is there instead.
    """
    try:
        return _folder(path) if path.is_dir() else _gguf(path)
    except PermissionError as error:
        raise FileAccessError(f"Cannot read {path}: permission denied.") from error


_WAYS = (
    f"Name a model with its path, an alias ({', '.join(sorted(ALIASES))}) or a Hugging Face id "
    "such as owner/name."
)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as error:
        raise FileAccessError(f"Cannot read {path}: permission denied.") from error
    except (OSError, ValueError):  # not there, a name too long, a null character
        return False
    return True


def _gguf(path: Path) -> Path:
    if not path.is_file():
        raise ModelNotFoundError(f"{path} is neither a file nor a folder. {_WAYS}")
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"GGUF":
        return path
    if path.suffix in {".safetensors", ".json"}:
        raise ModelNotFoundError(
            f"{path} is one file of a checkpoint. Give its folder: {path.parent.absolute()}"
        )
    raise ModelNotFoundError(
        f"{path} is not a GGUF file: it starts with {start!r}, not b'GGUF'. If a download was cut "
        "short or is a Git LFS pointer, fetch it again."
    )


def _folder(path: Path) -> Path:
    has_weights = any(path.glob("*.safetensors"))
    if (path / "config.json").is_file() and has_weights:
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _gguf(ggufs[0])
    if ggufs:
        raise ModelNotFoundError(
            f"{path} holds {len(ggufs)} GGUF files. Give one of them: {_listed(ggufs)}"
        )
    if has_weights:
        lack = "safetensors but no config.json; add the config.json that belongs to them"
    elif (path / "config.json").is_file():
        lack = "config.json but no *.safetensors, the only weights in a folder that can be read"
    else:
        lack = f"no config.json, *.safetensors or *.gguf ({_listed(sorted(path.iterdir()))})"
    raise ModelNotFoundError(f"The folder {path} is not a checkpoint: it has {lack}.")


def _nothing_there(model: str, path: Path) -> str:
    """Why a name that is no file, alias or hub id leads nowhere, with the nearest that would."""
    if "/" not in model and path.suffix != ".gguf" and not model.startswith(("~", ".")):
        near = difflib.get_close_matches(model.lower(), ALIASES, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"There is no model {model!r}. {hint}{_WAYS}"
    parent = path.absolute().parent
    while not _exists(parent):
        parent = parent.parent
    try:
        near = difflib.get_close_matches(path.name, [p.name for p in parent.iterdir()], n=1)
    except OSError:
        near = []
    hint = f"Did you mean {parent / near[0]}? " if near else f"{parent} exists. "
    return f"There is no file or folder {model!r}. {hint}{_WAYS}"


def _listed(paths: list[Path]) -> str:
    names = [path.name for path in paths[:8]]
    return ", ".join(names) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "") or "empty"
