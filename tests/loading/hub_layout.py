"""Repositories in a Hugging Face cache, as that hub's client lays them out."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from mtplx.loading import pull as pulling
from mtplx.loading.hub import download
from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import Fetched, record
from mtplx.loading.pull import Pulled, pull
from mtplx.loading.resolve import NOWHERE
from tests.loading.local_server import LARGE, REPO, SHA, etag

CHECKPOINT = {
    "config.json": json.dumps(
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    ).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": b"1" * 1000,
}


def put_repo(
    cache: Path,
    repo: str,
    files: Mapping[str, bytes],
    *,
    sha: str = SHA,
    main: bool = True,
    fetched: bool = False,
) -> Path:
    """A snapshot of these files; gives its folder. fetched: by us, as our list then says."""
    folder = repo_folder(repo, cache)
    snapshot = folder / "snapshots" / sha
    for name, content in files.items():
        blob = folder / "blobs" / etag(content, large=name.endswith(LARGE))
        link = snapshot / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.unlink(missing_ok=True)
        link.symlink_to(blob)
        if fetched:
            record(folder, [Fetched(str(link.relative_to(folder)), blob.name)])
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(sha)
    return snapshot


def listed(folder: Path) -> list[str]:
    """Every file and link below a folder that is no lock and no list of ours."""
    found = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return sorted(
        str(path.relative_to(folder))
        for path in found
        if not path.name.startswith(".") and path.suffix != ".lock"
    )


def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with nothing in it, for lookups and downloads alike."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    for module in ("pull", "resolve", "hub"):
        monkeypatch.setattr(f"mtplx.loading.{module}.hub_cache_dir", lambda: tmp_path / "hub")
    return tmp_path / "hub"


def pulled_from(
    host: str, monkeypatch: pytest.MonkeyPatch, name: str = REPO, *, update: bool = False
) -> Pulled:
    """A model out of a hub at this address."""
    monkeypatch.setattr(pulling, "download", partial(download, endpoint=host))
    return pull(name, NOWHERE, update=update)
