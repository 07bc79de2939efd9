"""From what a user calls a model to files on this machine: a path, an alias or a hub id."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mtplx.errors import ConfigError, FileAccessError, ModelNotFoundError
from mtplx.loading.catalogue import ALIASES, KnownModel
from mtplx.loading.fetch import fetch, is_cached, models_dir
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.gguf_known import is_later_part
from mtplx.loading.hub import hub_files
from mtplx.loading.hub_cache import find_cached, hub_cache_dir
from mtplx.loading.progress import Progress

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([^\0]+\.gguf))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a user has models, and what they are called, beyond what the program itself knows.

    folders: searched before anything is fetched. aliases: names for paths, ids and other aliases.
    """

    folders: tuple[Path, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


NOWHERE = Places()


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub, or a GGUF file in it, at a revision; the one on disk where None."""

    repo: str
    revision: str | None
    file: str | None


def resolve(model: str, *, places: Places = NOWHERE, progress: Progress | None = None) -> Path:
    """The GGUF file, or the folder with config.json and safetensors, that `model` names.

    model: what exists on disk under that name comes first; then an alias, the user's own before
        ("smollm2"); then what is in a folder of `places`; then a Hugging Face id, owner/name,
        owner/name/FILE.gguf or owner/name@REVISION. What is already on this machine is found
        without the network.

    Raises ModelNotFoundError where it leads nowhere, DownloadError where it cannot be fetched and
    FileAccessError where it cannot be read or stored.
    """
    name = expanded(model, places)
    found = _on_disk(name, places)
    if found is not None:
        return found
    if name in ALIASES:
        return fetch(ALIASES[name], progress=progress)
    hub = hub_name(name)
    if hub is not None:
        return hub_files(hub.repo, hub.file, revision=hub.revision, progress=progress)
    raise ModelNotFoundError(_nothing_there(name, places))


def locate(model: str, *, places: Places = NOWHERE) -> Path | None:
    """As `resolve`, but for what is on this machine alone; None for what would be fetched.

    Raises ModelNotFoundError and FileAccessError.
    """
    name = expanded(model, places)
    found = _on_disk(name, places)
    if found is None and name not in ALIASES and hub_name(name) is None:
        raise ModelNotFoundError(_nothing_there(name, places))
    return found


def expanded(model: str, places: Places) -> str:
    """What a name stands for when the user's own aliases are followed.

    What exists on disk under the name itself is not looked behind. Raises ModelNotFoundError for
    an empty name and ConfigError for aliases that lead back to themselves.
    """
    if not model.strip():
        raise ModelNotFoundError(f"The model's name is empty. {_ways(places)}")
    seen = [model]
    while seen[-1] in places.aliases and not _exists(_path(seen[-1])):
        seen.append(places.aliases[seen[-1]])
        if seen[-1] in seen[:-1] and seen[-1] != seen[-2]:
            raise ConfigError(f"The aliases {' -> '.join(seen)} lead back to themselves.")
        if seen[-1] == seen[-2]:  # an alias of its own name means what the program knows by it
            break
    return seen[-1]


def hub_name(name: str) -> HubName | None:
    """The parts of a Hugging Face id; None for what cannot be one."""
    match = _HUB_ID.fullmatch(name)
    if match is None or name.startswith(".") or ".." in Path(name).parts:
        return None
    return HubName(*match.groups())


def _on_disk(name: str, places: Places) -> Path | None:
    path = _path(name)
    if _exists(path):
        return checkpoint_at(path)
    if name in ALIASES:
        return _known(ALIASES[name], places)
    for folder in places.folders:
        if not name.startswith(("~", ".", "/")) and os.path.exists(folder / name):
            return checkpoint_at(folder / name)
    hub = hub_name(name)
    return None if hub is None else find_cached(hub.repo, hub.file, hub.revision, hub_cache_dir())


def _known(model: KnownModel, places: Places) -> Path | None:
    """A copy of a known model: ours, one in the hub's cache, or one in a folder of the user's."""
    if is_cached(model):
        return models_dir() / model.file_name
    cached = find_cached(model.hub_repo, model.file_name, None, hub_cache_dir())
    for path in [*([cached] if cached else []), *_copies(model, places)]:
        try:
            if path.stat().st_size == model.num_bytes and fingerprint(path) == model.fingerprint:
                return path
        except OSError:
            continue
    return None


def _copies(model: KnownModel, places: Places) -> Iterator[Path]:
    for folder in places.folders:
        try:
            yield from folder.glob(f"**/{model.file_name}")
        except OSError:
            continue


def checkpoint_at(path: Path) -> Path:
    """The GGUF file or safetensors folder at a path that exists.

    A folder with neither config.json nor safetensors stands for the only GGUF file in it.
    Raises ModelNotFoundError, saying what is there instead.
    """
    try:
        return _folder(path) if path.is_dir() else _gguf(path)
    except PermissionError as error:
        raise FileAccessError(f"Cannot read {path}: permission denied.") from error


def _ways(places: Places) -> str:
    names = ", ".join(sorted({*ALIASES, *places.aliases}))
    return (
        f"Name a model with its path, an alias ({names}) or a Hugging Face id such as owner/name."
    )


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of a user who has none
        return Path(name)


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
        raise ModelNotFoundError(f"{path} is neither a file nor a folder. {_ways(NOWHERE)}")
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
    ggufs = [file for file in sorted(path.glob("*.gguf")) if not is_later_part(file.name)]
    if len(ggufs) == 1:
        return _gguf(ggufs[0])
    if ggufs:
        raise ModelNotFoundError(
            f"{path} holds {len(ggufs)} GGUF models. Give one of them: {_listed(ggufs)}"
        )
    if has_weights:
        lack = "safetensors but no config.json; add the config.json that belongs to them"
    elif (path / "config.json").is_file():
        lack = "config.json but no *.safetensors, the only weights in a folder that can be read"
    else:
        lack = f"no config.json, *.safetensors or *.gguf ({_listed(sorted(path.iterdir()))})"
    raise ModelNotFoundError(f"The folder {path} is not a checkpoint: it has {lack}.")


def _nothing_there(model: str, places: Places) -> str:
    """Why a name that is no file, alias or hub id leads nowhere, with the nearest that would."""
    path, ways = _path(model), _ways(places)
    if "/" not in model and path.suffix != ".gguf" and not model.startswith(("~", ".")):
        known = [*ALIASES, *places.aliases]
        near = difflib.get_close_matches(model.lower(), known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"There is no model {model!r}. {hint}{ways}"
    parent = path.absolute().parent
    while not _exists(parent):
        parent = parent.parent
    try:
        near = difflib.get_close_matches(path.name, [p.name for p in parent.iterdir()], n=1)
    except OSError:
        near = []
    hint = f"Did you mean {parent / near[0]}? " if near else f"{parent} exists. "
    return f"There is no file or folder {model!r}. {hint}{ways}"


def _listed(paths: list[Path]) -> str:
    names = [path.name for path in paths[:8]]
    return ", ".join(names) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "") or "empty"
