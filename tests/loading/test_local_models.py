"""Everything that is on this machine is listed once, with what it is and whether it can be used."""

import os
from pathlib import Path

import pytest

from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import PART, Fetched, record
from mtplx.loading.local_models import LocalModel, local_models
from mtplx.loading.resolve import Places, resolve
from tests.loading.hub_layout import CHECKPOINT, put_repo
from tests.tiny_gguf import write_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mtplx.loading.resolve.hub_cache_dir", lambda: tmp_path / "hub")


def found(tmp_path: Path, *folders: Path) -> dict[str, LocalModel]:
    models = local_models(Places(folders), hub_cache=tmp_path / "hub")
    assert len({model.name for model in models}) == len(models)
    return {model.name: model for model in models}


def test_all_places_are_looked_through(tmp_path: Path) -> None:
    """Ours, the hub's cache and the user's folders; each name leads to what is listed."""
    own = write_model(tmp_path / "own.gguf")
    (tmp_path / "cache" / "mtplx" / "models").mkdir(parents=True)
    known = own.rename(tmp_path / "cache" / "mtplx" / "models" / SMOLLM2.file_name)
    os.truncate(known, SMOLLM2.num_bytes)
    put_repo(tmp_path / "hub", "owner/name", CHECKPOINT)
    gguf = write_model(tmp_path / "q.gguf").read_bytes()
    put_repo(tmp_path / "hub", "owner/ggufs", {"q4.gguf": gguf, "sub/q8.gguf": gguf + b"0"})
    mine = tmp_path / "my models"
    (mine / "a" / "b").mkdir(parents=True)
    write_model(mine / "a" / "b" / "ü q.gguf")
    models = found(tmp_path, mine)
    assert {name: model.place for name, model in models.items()} == {
        "smollm2": "MTPLX's cache",
        "owner/name": "Hugging Face cache",
        "owner/ggufs/q4.gguf": "Hugging Face cache",
        "owner/ggufs/sub/q8.gguf": "Hugging Face cache",
        "a/b/ü q.gguf": str(mine),
    }
    for name, model in models.items():
        assert resolve(name, places=Places((mine,))).samefile(model.path)
        assert model.problem is None
    assert models["owner/name"].kind == "llama bfloat16, safetensors"
    assert models["owner/name"].num_bytes == 1000
    assert models["smollm2"].num_bytes == SMOLLM2.num_bytes
    assert [model.fetched for model in models.values()] == [True] + [False] * 4


def test_the_same_file_is_listed_once(tmp_path: Path) -> None:
    """A folder of the user's that links into the hub's cache, and one that is named twice."""
    snapshot = put_repo(tmp_path / "hub", "owner/name", CHECKPOINT)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "linked").symlink_to(snapshot)
    (mine / "loop").symlink_to(mine)
    write_model(mine / "m.gguf")
    assert set(found(tmp_path, mine, mine)) == {"owner/name", "m.gguf"}


def test_what_cannot_be_used_says_why(tmp_path: Path) -> None:
    """Damaged files, types that are not readable yet, parts of a set, and what is not all here."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "damaged.gguf").write_bytes(b"<html>")
    (mine / "folder").mkdir()
    (mine / "folder" / "config.json").write_bytes(b"{")
    (mine / "folder" / "model.safetensors").write_bytes(b"")
    write_model(mine / "m-00001-of-00002.gguf")
    other = write_model(mine / "other.gguf")
    other.write_bytes(
        other.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", 1)
    )
    (mine / "dangling.gguf").symlink_to("nowhere")
    problems = {name: model.problem for name, model in found(tmp_path, mine).items()}
    assert problems == {
        "damaged.gguf": "damaged",
        "folder": "damaged",
        "m-00001-of-00002.gguf": "lacks a part",
        "other.gguf": "not readable yet",
    }


def test_a_model_in_several_files_is_listed_once(tmp_path: Path) -> None:
    """Under its first file, with what all of them take."""
    mine = tmp_path / "mine"
    mine.mkdir()
    sizes = [write_model(mine / f"m-0000{i}-of-00002.gguf").stat().st_size for i in (1, 2)]
    models = found(tmp_path, mine)
    assert {name: model.num_bytes for name, model in models.items()} == {
        "m-00001-of-00002.gguf": sum(sizes)
    }


def test_what_does_not_write_text_is_left_out(tmp_path: Path) -> None:
    """The cache holds classifiers and the like of other programs."""
    config = b'{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'
    put_repo(tmp_path / "hub", "owner/bert", {**CHECKPOINT, "config.json": config})
    put_repo(tmp_path / "hub", "owner/dataset", {"data.txt": b""})
    (tmp_path / "hub" / "models--owner--empty").mkdir()
    assert found(tmp_path) == {}


def test_a_download_that_was_broken_off_is_listed_as_such(tmp_path: Path) -> None:
    """With what it takes; that of a single file beside a whole one, too."""
    for repo, name in (("owner/name", "model.safetensors"), ("owner/ggufs", "q8.gguf")):
        folder = repo_folder(repo, tmp_path / "hub")
        if repo == "owner/ggufs":
            put_repo(tmp_path / "hub", repo, {"q4.gguf": write_model(tmp_path / "q").read_bytes()})
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / f"abc{PART}").write_bytes(b"1" * 70)
        record(folder, [Fetched(f"snapshots/{'0' * 40}/{name}", "abc")])
    models = found(tmp_path)
    assert set(models) == {"owner/name", "owner/ggufs/q4.gguf", "owner/ggufs/q8.gguf"}
    for name in ("owner/name", "owner/ggufs/q8.gguf"):
        assert models[name].kind == "unfinished"
        assert models[name].num_bytes == 70
        assert "mtplx models pull" in (models[name].problem or "")


def test_folders_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """One that is not there, one that is a file; and a user without a home."""
    (tmp_path / "file").write_text("")
    assert found(tmp_path, tmp_path / "nowhere", tmp_path / "file", Path("~nobody/x")) == {}
