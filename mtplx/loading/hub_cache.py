"""What lies in the Hugging Face cache, read by its layout alone: no client, no network.

models--OWNER--NAME/blobs/HASH              contents
models--OWNER--NAME/snapshots/COMMIT/FILE   links to them
models--OWNER--NAME/refs/main               the commit that was last the newest
"""

import json
import re
from collections.abc import Iterator
from os.path import isdir, isfile  # what may not be looked at is not there
from pathlib import Path

from mtplx.loading.gguf_known import part_names

PREFIX = "models--"


def hub_cache_dir() -> Path:
    """Where the hub's own client keeps models, as the variables that it knows say."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str, cache: Path) -> Path:
    """Where a repository's files are, or would be."""
    return cache / f"{PREFIX}{repo.replace('/', '--')}"


def cached_repos(cache: Path) -> Iterator[str]:
    """Ids of the repositories that have anything in the cache, in alphabetic order."""
    try:
        names = sorted(path.name for path in cache.iterdir())
    except OSError:
        return
    for name in names:
        if name.startswith(PREFIX) and name.count("--") == 2:
            yield name.removeprefix(PREFIX).replace("--", "/")


def snapshots(folder: Path) -> list[Path]:
    """A repository's snapshots: the one that was last the newest, then the others by age."""
    try:
        found = [path for path in (folder / "snapshots").iterdir() if isdir(path)]
        found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []
    main = commit_of(folder, "main")
    return sorted(found, key=lambda path: path.name != main)


def commit_of(folder: Path, revision: str) -> str:
    """The commit that a branch or tag stood for when it was last asked for, or the commit given."""
    try:
        return (folder / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return revision


def find_cached(repo: str, file: str | None, revision: str | None, cache: Path) -> Path | None:
    """The safetensors folder or the GGUF file of a repository, if it is whole.

    file: the GGUF file that is meant, or any of several that are a model together; their first is
    given. revision: look nowhere else; a commit, branch or tag.
    """
    folder = repo_folder(repo, cache)
    candidates = snapshots(folder)
    if revision is not None:
        commit = commit_of(folder, revision)
        candidates = [path for path in candidates if path.name == commit]
    for snapshot in candidates:
        if file is not None:
            if first := _whole_gguf(snapshot, file):
                return first
            continue
        ggufs = [path for path in snapshot.glob("*.gguf") if isfile(path)]
        if isfile(snapshot / "config.json") and any(snapshot.glob("*.safetensors*")):
            if not missing_files(snapshot):
                return snapshot
        elif len({part_names(path.name)[0] for path in ggufs}) == 1 and (
            first := _whole_gguf(snapshot, ggufs[0].name)
        ):
            return first
    return None


def _whole_gguf(snapshot: Path, file: str) -> Path | None:
    names = part_names(file)
    return snapshot / names[0] if all(isfile(snapshot / name) for name in names) else None


def missing_files(snapshot: Path) -> list[str]:
    """What a folder of safetensors lacks to be a checkpoint: parts of the weights, a tokenizer."""
    needed = ["config.json", "tokenizer.json", *_weight_files(snapshot)]
    return [name for name in needed if not isfile(snapshot / name)]


def _weight_files(snapshot: Path) -> list[str]:
    """The weight files that there should be, by the index or by how the files are numbered."""
    index = snapshot / "model.safetensors.index.json"
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return [f"{index.name} (readable)"]
    names = [path.name for path in snapshot.glob("*.safetensors")]
    for name in names:
        if numbered := re.fullmatch(r"(.*-)(\d+)-of-(\d+)\.safetensors", name):
            start, number, total = numbered.groups()
            counted = range(1, min(int(total), 10_000) + 1)
            return [f"{start}{i:0{len(number)}}-of-{total}.safetensors" for i in counted]
    return names or ["model.safetensors"]
