"""Every model on this machine: in our cache, in the Hugging Face cache, in the user's folders."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os.path import exists, isdir, isfile  # what may not be looked at is not there
from pathlib import Path

from mtplx.errors import FileAccessError, MtplxError
from mtplx.loading.catalogue import known_model
from mtplx.loading.fetch import is_cached, models_dir
from mtplx.loading.gguf_header import gguf_header
from mtplx.loading.gguf_known import ARCHITECTURES, gguf_parts, is_later_part, part_names
from mtplx.loading.hub_cache import (
    cached_repos,
    find_cached,
    hub_cache_dir,
    missing_files,
    repo_folder,
    snapshots,
)
from mtplx.loading.hub_record import PART, Fetched, fetched_files
from mtplx.loading.resolve import Places

_HUB = "Hugging Face cache"
_DEPTH = 3  # below a user's folder: OWNER/NAME/FILE
_GENERATES = re.compile("CausalLM|ConditionalGeneration|LMHeadModel")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that is here.

    name: what leads to it. path: its file or folder. kind: architecture and weights, in words.
    place: where it is, in words. fetched: whether it came by our doing and may be removed by it.
    problem: why it cannot be loaded, in words; None where nothing speaks against it.
    """

    name: str
    path: Path
    kind: str
    num_bytes: int
    place: str
    fetched: bool
    problem: str | None = None


def local_models(places: Places, *, hub_cache: Path | None = None) -> list[LocalModel]:
    """Everything that can be named, ours first; the same file under two names is listed once.

    hub_cache: the hub client's own where None.
    """
    found: list[LocalModel] = []
    seen: set[tuple[Path, str]] = set()
    for model in (*_ours(), *_hub(hub_cache or hub_cache_dir()), *_folders(places.folders)):
        real = model.path.resolve()
        key = (real, model.name if model.kind == "unfinished" else "")
        if key not in seen:
            seen.add(key)
            found.append(model)
    return found


def _ours() -> Iterator[LocalModel]:
    try:
        files = sorted(models_dir().glob("*.gguf"))
    except (OSError, FileAccessError):  # no home folder
        return
    for path in files:
        known = known_model(path)
        name = known.alias if known is not None and is_cached(known) else str(path)
        yield _gguf(name, path, "MTPLX's cache", fetched=True)


def _hub(cache: Path) -> Iterator[LocalModel]:
    for repo in cached_repos(cache):
        folder = repo_folder(repo, cache)
        fetched = fetched_files(folder)
        links = {file.link for file in fetched}
        whole = find_cached(repo, None, None, cache)
        if whole is not None and whole.is_dir():
            model = _folder(repo, whole, _HUB, fetched=bool(links))
            if model is not None:
                yield model
        names: set[str] = set()
        for snapshot in snapshots(folder):
            for path in sorted(snapshot.rglob("*.gguf")):
                name = str(path.relative_to(snapshot))
                own = str(path.relative_to(folder)) in links
                if isfile(path) and name not in names and not _is_told(path, own=own):
                    names.add(name)
                    yield _gguf(f"{repo}/{name}", path, _HUB, fetched=own)
        yield from _unfinished(repo, folder, fetched, is_whole=whole is not None)


def _is_told(path: Path, *, own: bool) -> bool:
    """Whether another entry tells of a part: that of the first one, or of what is unfinished."""
    names = part_names(path.name)
    there = [name for name in names if isfile(path.with_name(name))]
    return path.name != there[0] or (own and there != names)


def _unfinished(
    repo: str, folder: Path, fetched: list[Fetched], *, is_whole: bool
) -> Iterator[LocalModel]:
    """What downloads that were broken off have left."""
    sizes: dict[str, int] = {}
    for file in fetched:
        is_gguf = file.link.endswith(".gguf")
        parts = part_names(file.link)
        if is_whole if not is_gguf else all(isfile(folder / part) for part in parts):
            continue
        name = f"{repo}/{'/'.join(Path(parts[0]).parts[2:])}" if is_gguf else repo
        blobs = [folder / "blobs" / f"{file.etag}{end}" for end in ("", PART)]
        there = sum(blob.lstat().st_size for blob in blobs if isfile(blob))
        sizes[name] = sizes.get(name, 0) + there
    for name, num_bytes in sizes.items():
        if num_bytes:
            problem = "not all here, `mtplx models pull` goes on"
            yield LocalModel(name, folder, "unfinished", num_bytes, _HUB, True, problem)


def _folders(folders: tuple[Path, ...]) -> Iterator[LocalModel]:
    for root in folders:
        for path in _checkpoints(root, _DEPTH, set()):
            name = str(path.relative_to(root))
            if any(exists(other / name) for other in folders[: folders.index(root)]):
                name = str(path)
            if path.is_dir():
                model = _folder(name, path, str(root), fetched=False)
                if model is not None:
                    yield model
            else:
                yield _gguf(name, path, str(root), fetched=False)


def _checkpoints(folder: Path, depth: int, seen: set[str]) -> Iterator[Path]:
    """GGUF files and folders of safetensors at most `depth` levels down, links followed once."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    names = {path.name for path in inside}
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
        return
    for path in inside:
        if _begins_a_model(path.name) and isfile(path):
            yield path
        elif depth and not path.name.startswith(".") and isdir(path):
            yield from _checkpoints(path, depth - 1, seen)


def _gguf(name: str, path: Path, place: str, *, fetched: bool) -> LocalModel:
    kind, problem, num_bytes = "GGUF", None, 0
    try:
        parts = [path.with_name(name) for name in part_names(path.name)]
        num_bytes = sum(part.stat().st_size for part in parts if isfile(part))
        if not is_later_part(path.name):
            gguf_parts(path)
        header = gguf_header(path)
        architecture = header.get("general.architecture")
        types = _FILE_TYPES.get(header.get("general.file_type"), "")
        kind = f"{architecture} {types}".strip() + ", GGUF"
        if is_later_part(path.name):
            problem = "a later part of a model"
        elif architecture not in ARCHITECTURES:
            problem = "not readable yet"
    except OSError as error:
        problem = error.strerror or "cannot be read"
    except MtplxError as error:
        problem = "lacks a part" if "is not there" in str(error) else "damaged"
    return LocalModel(name, path, kind, num_bytes, place, fetched, problem)


def _begins_a_model(name: str) -> bool:
    """Whether a file may hold a model, or the first part of one; images have files of their own."""
    return name.endswith(".gguf") and not name.startswith("mmproj") and not is_later_part(name)


def _folder(name: str, path: Path, place: str, *, fetched: bool) -> LocalModel | None:
    """The model in a folder of safetensors; None for one that does not write text."""
    try:
        config = json.loads((path / "config.json").read_bytes())
        num_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except (OSError, ValueError, RecursionError):
        return LocalModel(name, path, "safetensors", 0, place, fetched, "damaged")
    if not isinstance(config, dict):
        return LocalModel(name, path, "safetensors", num_bytes, place, fetched, "damaged")
    architectures = config.get("architectures") or []
    if architectures and not any(_GENERATES.search(str(found)) for found in architectures):
        return None
    kind = f"{config.get('model_type', 'unknown')} {_precision(config)}".strip() + ", safetensors"
    missing = missing_files(path)
    problem = f"lacks {missing[0]}" if missing else None
    return LocalModel(name, path, kind, num_bytes, place, fetched, problem)


def _precision(config: Mapping[str, object]) -> str:
    quantization = config.get("quantization")
    if isinstance(quantization, dict) and "bits" in quantization:
        return f"{quantization['bits']}-bit"
    return str(config.get("torch_dtype") or config.get("dtype") or "")


_FILE_TYPES: Mapping[object, str] = {  # general.file_type, as llama.cpp numbers it
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}
