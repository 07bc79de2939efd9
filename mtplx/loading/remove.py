"""Removing models that were fetched here, and nothing else."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mtplx.errors import FileAccessError, ModelNotFoundError
from mtplx.files import accessing, locked
from mtplx.loading.catalogue import ALIASES
from mtplx.loading.fetch import models_dir
from mtplx.loading.gguf_known import part_names
from mtplx.loading.hub_cache import hub_cache_dir, repo_folder
from mtplx.loading.hub_record import PART, Fetched, fetched_files, remove
from mtplx.loading.resolve import HubName, Places, expanded, hub_name, locate


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model would take away.

    place: where it is. num_bytes: what becomes free. run: does it, and gives the bytes.
    """

    place: Path
    num_bytes: int
    run: Callable[[], int]


def removal_of(model: str, places: Places, *, hub_cache: Path | None = None) -> Removal:
    """How to remove what `model` names, exactly that and not what resembles it.

    hub_cache: the hub client's own where None.
    Raises ModelNotFoundError for what is not here, and FileAccessError for what is here but did
    not come by our doing.
    """
    name = expanded(model, places)
    cache = hub_cache or hub_cache_dir()
    hub = hub_name(name)
    if name in ALIASES:
        own = models_dir() / ALIASES[name].file_name
        if own.exists():
            return _own(own)
    elif hub is not None and not os.path.exists(name):
        fetched = _fetched(hub, cache)
        if fetched:
            return _from_hub(hub, cache, fetched)
    path = locate(name, places=places)
    if path is None:
        raise ModelNotFoundError(f"{model} is not on this machine, so there is nothing to remove.")
    if path.parent.resolve() == models_dir().resolve():
        return _own(path)
    raise _not_ours(model, path, cache)


def _own(path: Path) -> Removal:
    def run() -> int:
        with locked(path.with_name(".lock"), partial(_refuse, path.name)):
            num_bytes = path.lstat().st_size
            with accessing("remove", path):
                path.unlink()
        return num_bytes

    if path.is_dir() and not path.is_symlink():
        raise FileAccessError(f"{path} is a folder, which MTPLX did not put there.")
    return Removal(path, path.lstat().st_size, run)


def _fetched(hub: HubName, cache: Path) -> list[Fetched]:
    """What was fetched here of a repository, or of one model in it, at a revision or all."""
    return [
        file
        for file in fetched_files(repo_folder(hub.repo, cache))
        if hub.file in (None, *part_names("/".join(Path(file.link).parts[2:])))
        and hub.revision in (None, Path(file.link).parts[1])
    ]


def _from_hub(hub: HubName, cache: Path, files: list[Fetched]) -> Removal:
    folder = repo_folder(hub.repo, cache)
    lock = cache / ".locks" / folder.name / "mtplx.lock"

    def run() -> int:
        with accessing("write", lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, partial(_refuse, hub.repo)):
            return remove(folder, files)

    blobs = {folder / "blobs" / f"{file.etag}{end}" for file in files for end in ("", PART)}
    return Removal(folder, sum(blob.lstat().st_size for blob in blobs if blob.is_file()), run)


def _refuse(name: str) -> None:
    raise FileAccessError(f"{name} is being fetched by another process. Remove it afterwards.")


def _not_ours(model: str, path: Path, cache: Path) -> FileAccessError:
    if path.is_relative_to(cache):
        repo = path.relative_to(cache).parts[0].removeprefix("models--").replace("--", "/")
        return FileAccessError(
            f"{model} lies in the Hugging Face cache, where another program put it ({path}). "
            f"`hf cache rm model/{repo}` removes it."
        )
    return FileAccessError(
        f"{model} was not fetched by MTPLX, so it is not removed. It is at {path}."
    )
