"""Bringing a model to this machine whole: every byte is compared with what it should be."""

from dataclasses import dataclass
from pathlib import Path

from mtplx.errors import ModelNotFoundError
from mtplx.files import accessing
from mtplx.loading.catalogue import ALIASES
from mtplx.loading.fetch import fetch, is_cached, models_dir, verify
from mtplx.loading.gguf_known import gguf_parts
from mtplx.loading.hub import download
from mtplx.loading.hub_cache import hub_cache_dir, repo_folder
from mtplx.loading.hub_download import HubFile, has_content
from mtplx.loading.progress import Progress, silent
from mtplx.loading.resolve import HubName, Places, expanded, hub_name, locate


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here. revision: the hub's commit that it is of, None for a known file.

    num_bytes: of all of its files. num_checked: how many of them were compared with a hash.
    """

    path: Path
    revision: str | None
    num_bytes: int
    num_files: int
    num_checked: int


def pull(
    model: str, places: Places, *, update: bool = False, progress: Progress | None = None
) -> Pulled:
    """Fetch what `model` names, or what is missing or damaged of it.

    update: ask the hub for its newest revision, also where one is here. What is here is otherwise
    checked without the network.
    Raises ModelNotFoundError, DownloadError and FileAccessError.
    """
    name, report = expanded(model, places), progress or silent
    hub = hub_name(name)
    found = locate(name, places=places)
    if name in ALIASES and (found is None or found.parent == models_dir()):
        return _known(name, report)
    if hub is None or (found is not None and not found.is_relative_to(hub_cache_dir())):
        if found is None:
            raise ModelNotFoundError(f"{model} is not on this machine and on no hub.")
        return _counted(found, None, 0)
    if found is None:
        found = download(hub.repo, hub.file, revision=hub.revision, progress=report)
    elif update or not _is_right(found, report):
        revision = hub.revision if update else _commit(found)
        found = download(hub.repo, _file_in(hub, found), revision=revision, progress=report)
    return _counted(found, _commit(found), None)


def _known(name: str, report: Progress) -> Pulled:
    known, path = ALIASES[name], models_dir() / ALIASES[name].file_name
    if is_cached(known):
        report(0, 0, "checking")
        if not verify(path, known):
            with accessing("remove", path):
                path.unlink()
    return _counted(fetch(known, progress=report), None, 1)


def _file_in(hub: HubName, found: Path) -> str | None:
    """The name in its repository of a GGUF file that is here."""
    if found.is_dir():
        return None
    parts = found.relative_to(repo_folder(hub.repo, hub_cache_dir())).parts
    return "/".join(parts[2:])


def _commit(found: Path) -> str:
    parts = found.relative_to(hub_cache_dir()).parts
    return parts[2]


def _is_right(found: Path, report: Progress) -> bool:
    """Whether each file has the content that its name in the cache stands for."""
    for path in _files(found):
        content = path.resolve()
        if not path.is_symlink() or len(content.name) not in (40, 64):
            continue  # a cache without links keeps no hashes
        if not has_content(
            content, HubFile(path.name, content.stat().st_size, content.name), report
        ):
            return False
    return True


def _counted(found: Path, revision: str | None, num_checked: int | None) -> Pulled:
    files = _files(found)
    checked = sum(path.is_symlink() for path in files) if num_checked is None else num_checked
    num_bytes = sum(path.stat().st_size for path in files)
    return Pulled(found, revision, num_bytes, len(files), checked)


def _files(found: Path) -> list[Path]:
    if found.is_dir():
        return sorted(path for path in found.iterdir() if path.is_file())
    return gguf_parts(found)
