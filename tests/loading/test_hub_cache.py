"""The Hugging Face cache is read by its layout: what is whole is found, what is not is not."""

import json
from pathlib import Path

import pytest

from mtplx.loading.hub_cache import cached_repos, find_cached, missing_files, repo_folder
from tests.loading.hub_layout import CHECKPOINT, put_repo

REPO = "owner/name"
OLD, NEW = "1" * 40, "2" * 40


def test_the_newest_whole_snapshot_is_taken(tmp_path: Path) -> None:
    """That of refs/main where it is whole, else another that is."""
    old = put_repo(tmp_path, REPO, CHECKPOINT, sha=OLD)
    assert find_cached(REPO, None, None, tmp_path) == old
    new = put_repo(tmp_path, REPO, CHECKPOINT, sha=NEW)
    assert find_cached(REPO, None, None, tmp_path) == new
    (new / "model.safetensors").unlink()
    assert find_cached(REPO, None, None, tmp_path) == old
    assert find_cached(REPO, None, "main", tmp_path) is None


def test_a_revision_is_that_one(tmp_path: Path) -> None:
    """A commit, or a branch that was asked for before; no other stands in for it."""
    old = put_repo(tmp_path, REPO, CHECKPOINT, sha=OLD)
    put_repo(tmp_path, REPO, CHECKPOINT, sha=NEW)
    (repo_folder(REPO, tmp_path) / "refs" / "v1").write_text(OLD)
    assert find_cached(REPO, None, OLD, tmp_path) == old
    assert find_cached(REPO, None, "v1", tmp_path) == old
    assert find_cached(REPO, None, "3" * 40, tmp_path) is None


def test_a_file_is_found_in_any_snapshot(tmp_path: Path) -> None:
    """Another program that has moved refs/main on does not cost a second download."""
    snapshot = put_repo(tmp_path, REPO, {"q4.gguf": b"GGUF"}, sha=OLD)
    put_repo(tmp_path, REPO, {"config.json": b"{}"}, sha=NEW)
    for file in ("q4.gguf", None):
        assert find_cached(REPO, file, None, tmp_path) == snapshot / "q4.gguf"
    assert find_cached(REPO, "q8.gguf", None, tmp_path) is None


@pytest.mark.parametrize("lacking", CHECKPOINT)
def test_a_snapshot_without_a_needed_file_is_not_whole(tmp_path: Path, lacking: str) -> None:
    """Also where only the content behind the link is gone."""
    snapshot = put_repo(tmp_path, REPO, CHECKPOINT)
    (snapshot / lacking).resolve().unlink()
    assert find_cached(REPO, None, None, tmp_path) is None
    assert missing_files(snapshot) == [lacking]


def test_numbered_weights_say_how_many_there_are(tmp_path: Path) -> None:
    """Where the index has not come yet, and where it lists what has not."""
    files = {name: content for name, content in CHECKPOINT.items() if "model" not in name}
    files |= {f"model-0000{i}-of-00003.safetensors": b"%d" % i for i in (1, 3)}
    snapshot = put_repo(tmp_path, REPO, files)
    assert missing_files(snapshot) == ["model-00002-of-00003.safetensors"]
    index = {"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "other.safetensors"}}
    put_repo(tmp_path, REPO, {"model.safetensors.index.json": json.dumps(index).encode()})
    assert missing_files(snapshot) == ["other.safetensors"]
    put_repo(tmp_path, REPO, {"model.safetensors.index.json": b"{"})
    assert "model.safetensors.index.json" in missing_files(snapshot)[0]


def test_whatever_lies_about_in_the_cache_is_no_repository(tmp_path: Path) -> None:
    """Other kinds of repositories, locks, files, and a cache that is not there."""
    put_repo(tmp_path, REPO, CHECKPOINT)
    for name in ("datasets--a--b", ".locks", "models--broken", "version.txt"):
        (tmp_path / name).mkdir()
    assert list(cached_repos(tmp_path)) == [REPO]
    assert list(cached_repos(tmp_path / "nowhere")) == []
    assert list(cached_repos(Path("/proc/version"))) == []


def test_a_cache_behind_a_link_with_odd_names_is_read(tmp_path: Path) -> None:
    """A disk elsewhere, spaces, and letters beyond ASCII."""
    real = tmp_path / "große Platte"
    snapshot = put_repo(real, REPO, {"Modell ü.gguf": b"GGUF"})
    (tmp_path / "hub").symlink_to(real)
    found = find_cached(REPO, "Modell ü.gguf", None, tmp_path / "hub")
    assert found is not None
    assert found.samefile(snapshot / "Modell ü.gguf")
