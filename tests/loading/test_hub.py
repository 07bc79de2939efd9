"""Checkpoints from the hub: fetched once, whole, and found again without the network."""

import json
import os
from pathlib import Path

import pytest

from mtplx.errors import DownloadError, ModelNotFoundError
from mtplx.loading.hub import download, hub_files
from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import PART
from tests.loading.local_server import REPO, SHA, etag, hub_pages, serving

INDEX = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}).encode()
SHARDED = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors.index.json": INDEX,
    "one.safetensors": b"1" * 100,
    "two.safetensors": b"2" * 100,
    "pytorch_model.bin": b"3" * 100,
    "modeling_custom.py": b"raise SystemExit",
}


def test_a_checkpoint_is_fetched_without_code_or_other_weights(tmp_path: Path) -> None:
    """Weights, configuration, tokenizer and template come; pickles and Python stay away."""
    with serving(hub_pages(SHARDED)) as (host, _):
        folder = hub_files(REPO, cache=tmp_path, endpoint=host)
    assert {p.name for p in folder.iterdir()} == SHARDED.keys() - {
        "pytorch_model.bin",
        "modeling_custom.py",
    }
    assert (folder / "two.safetensors").read_bytes() == SHARDED["two.safetensors"]


def test_a_checkpoint_on_disk_makes_no_network_call(tmp_path: Path) -> None:
    """The second time nothing is asked of the hub."""
    with serving(hub_pages(SHARDED)) as (host, log):
        first = hub_files(REPO, cache=tmp_path, endpoint=host)
        asked = len(log)
        assert asked > 0
        assert hub_files(REPO, cache=tmp_path, endpoint=host) == first
        assert len(log) == asked


def test_half_a_checkpoint_is_completed(tmp_path: Path) -> None:
    """A shard that an interrupted download left out is fetched, not passed over."""
    with serving(hub_pages(SHARDED)) as (host, _):
        folder = hub_files(REPO, cache=tmp_path, endpoint=host)
        (folder / "two.safetensors").unlink()
        again = hub_files(REPO, cache=tmp_path, endpoint=host)
    assert (again / "two.safetensors").read_bytes() == SHARDED["two.safetensors"]


@pytest.mark.parametrize("present", [{"one.safetensors"}, {"one.safetensors", "two.safetensors"}])
def test_a_cache_that_another_program_filled_is_used_if_whole(
    tmp_path: Path, present: set[str]
) -> None:
    """The hub's cache layout is understood; the index of the shards says what is missing."""
    home = tmp_path / f"models--{REPO.replace('/', '--')}"
    folder = home / "snapshots" / SHA
    (home / "refs").mkdir(parents=True)
    folder.mkdir(parents=True)
    (home / "refs" / "main").write_text(SHA)
    for name in present | {"config.json", "tokenizer.json", "model.safetensors.index.json"}:
        (folder / name).write_bytes(SHARDED[name])
    with serving(hub_pages(SHARDED)) as (host, log):
        assert hub_files(REPO, cache=tmp_path, endpoint=host) == folder
    assert (folder / "two.safetensors").read_bytes() == SHARDED["two.safetensors"]
    assert (log == []) == ("two.safetensors" in present)
    assert [path for path in log if path.endswith("one.safetensors")] == []


def test_the_only_gguf_file_of_a_repository_is_taken(tmp_path: Path) -> None:
    """A repository with one GGUF file needs no more than its id, now and the next time."""
    with serving(hub_pages({"q4.gguf": b"GGUF", "README.md": b""})) as (host, log):
        path = hub_files(REPO, cache=tmp_path, endpoint=host)
        asked = len(log)
        assert hub_files(REPO, cache=tmp_path, endpoint=host) == path
        assert len(log) == asked
    assert path.read_bytes() == b"GGUF"


def test_one_of_many_gguf_files_has_to_be_chosen(tmp_path: Path) -> None:
    """Nothing is downloaded before one is named; the error lists what can be typed."""
    with serving(hub_pages({"q4.gguf": b"GGUF4", "q8.gguf": b"GGUF8"})) as (host, log):
        with pytest.raises(ModelNotFoundError, match=f"{REPO}/q4.gguf, {REPO}/q8.gguf"):
            hub_files(REPO, cache=tmp_path, endpoint=host)
        assert not any("resolve" in path for path in log)
        chosen = hub_files(REPO, "q8.gguf", cache=tmp_path, endpoint=host)
        assert chosen.read_bytes() == b"GGUF8"
        asked = len(log)
        assert hub_files(REPO, "q8.gguf", cache=tmp_path, endpoint=host) == chosen
        assert len(log) == asked


def test_a_repository_without_weights_we_read_is_refused(tmp_path: Path) -> None:
    """Pickles alone are not a checkpoint, and are not downloaded."""
    pages = hub_pages({"config.json": b"{}", "pytorch_model.bin": b""})
    refused = pytest.raises(ModelNotFoundError, match="neither safetensors")
    with serving(pages) as (host, _), refused:
        hub_files(REPO, cache=tmp_path, endpoint=host)


@pytest.mark.parametrize("file", [None, "q4.gguf"])
def test_an_id_that_is_not_on_the_hub_is_said_to_be_missing(
    tmp_path: Path, file: str | None
) -> None:
    """Neither a path nor a model: both possibilities are named."""
    refused = pytest.raises(ModelNotFoundError, match=r"someone/model.* no such")
    with serving({}) as (host, _), refused:
        hub_files(REPO, file, cache=tmp_path, endpoint=host)


def test_an_unreachable_hub_is_not_a_missing_model(tmp_path: Path) -> None:
    """Offline, the error says so and how to go on."""
    with pytest.raises(DownloadError, match=r"cannot be reached.*path of a model on disk"):
        hub_files(REPO, cache=tmp_path, endpoint="http://127.0.0.1:9")


def test_an_impossible_id_is_refused_before_any_call(tmp_path: Path) -> None:
    """What cannot be an id is not asked for."""
    with pytest.raises(ModelNotFoundError, match="cannot be a Hugging Face id"):
        hub_files("owner/-name-", cache=tmp_path, endpoint="http://127.0.0.1:9")


def test_a_file_that_is_not_in_the_repository_is_said_to_be_missing(tmp_path: Path) -> None:
    """A slip in a file's name is not blamed on the repository."""
    refused = pytest.raises(
        ModelNotFoundError, match=r"someone/model has no such file as q9.*q4\.gguf"
    )
    with serving(hub_pages({"q4.gguf": b"GGUF4"})) as (host, _), refused:
        hub_files(REPO, "q9.gguf", cache=tmp_path, endpoint=host)


def test_a_broken_download_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part is kept, is no model, and is not asked for again."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
    pages = hub_pages({"q4.gguf": (content := b"GGUF" + os.urandom(200_000))})
    with serving(pages, cut_at=90_000) as (host, _), pytest.raises(DownloadError):
        hub_files(REPO, cache=tmp_path, endpoint=host)
    assert [path.name for path in tmp_path.rglob("*.gguf")] == []
    with serving(pages) as (host, log):
        assert hub_files(REPO, cache=tmp_path, endpoint=host).read_bytes() == content
    assert log[-1].endswith("q4.gguf from 90000")
    assert list(tmp_path.rglob(f"*{PART}")) == []


def test_a_download_that_is_of_another_file_begins_anew(tmp_path: Path) -> None:
    """What an upstream change left under the same hash is found out and fetched again."""
    content = b"GGUF" + os.urandom(1000)
    part = repo_folder(REPO, tmp_path) / "blobs" / f"{etag(content, large=True)}{PART}"
    part.parent.mkdir(parents=True)
    for wrong in (b"x" * 500, b"x" * 5000):
        part.write_bytes(wrong)
        with serving(hub_pages({"q4.gguf": content})) as (host, _):
            path = hub_files(REPO, cache=tmp_path, endpoint=host)
        assert path.read_bytes() == content
        path.resolve().unlink()


def test_an_upstream_change_between_two_attempts_is_never_mixed(tmp_path: Path) -> None:
    """After a change, all files are of the new commit, those that were whole already included."""
    new = {name: content + b" " for name, content in SHARDED.items()} | {"extra.json": b"1"}
    shards = {"two.safetensors": SHARDED["two.safetensors"]}
    broken = {name: page for name, page in hub_pages(SHARDED).items() if "two.safe" not in name}
    with serving(broken) as (host, _), pytest.raises(DownloadError):
        hub_files(REPO, cache=tmp_path, endpoint=host)
    with serving(hub_pages(new | shards, sha="1" * 40)) as (host, _):
        folder = hub_files(REPO, cache=tmp_path, endpoint=host)
    assert folder.name == "1" * 40
    assert (folder / "config.json").read_bytes() == new["config.json"]
    assert (folder / "one.safetensors").read_bytes() == new["one.safetensors"]
    assert (folder / "extra.json").exists()


@pytest.mark.parametrize("name", ["one.safetensors", "config.json"])
def test_a_file_with_another_content_than_listed_is_not_kept(tmp_path: Path, name: str) -> None:
    """The hash decides, also where the size is right; nothing of it stays."""
    pages = hub_pages(SHARDED, served={name: SHARDED[name][:-1] + b"!"})
    refused = pytest.raises(DownloadError, match=rf"{name} came with another content.*not kept")
    with serving(pages) as (host, _), refused:
        hub_files(REPO, cache=tmp_path, endpoint=host)
    assert list(tmp_path.rglob(name)) == []
    assert list(tmp_path.rglob(f"*{PART}")) == []


def test_a_pull_finds_and_mends_a_damaged_file(tmp_path: Path) -> None:
    """What is on disk is compared with the hub's hashes, and only what is wrong comes again."""
    with serving(hub_pages(SHARDED)) as (host, log):
        folder = hub_files(REPO, cache=tmp_path, endpoint=host)
        blob = (folder / "one.safetensors").resolve()
        blob.write_bytes(b"0" * 100)
        log.clear()
        assert download(REPO, cache=tmp_path, endpoint=host) == folder
    assert (folder / "one.safetensors").read_bytes() == SHARDED["one.safetensors"]
    assert [path for path in log if "resolve" in path] == [f"/{REPO}/resolve/{SHA}/one.safetensors"]


def test_weights_come_last(tmp_path: Path) -> None:
    """Where the weights are whole, so is the rest: a half snapshot cannot pass for a model."""
    with serving(hub_pages(SHARDED)) as (host, log):
        hub_files(REPO, cache=tmp_path, endpoint=host)
    fetched = [path for path in log if "resolve" in path]
    assert [path.endswith(".safetensors") for path in fetched] == [False] * 4 + [True] * 2


def test_a_second_copy_of_the_weights_stays_away(tmp_path: Path) -> None:
    """Weights that a repository has twice are fetched once."""
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"1"}
    with serving(hub_pages({**files, "consolidated.safetensors": b"2"})) as (host, _):
        folder = hub_files(REPO, cache=tmp_path, endpoint=host)
    assert {path.name for path in folder.iterdir()} == files.keys()


def test_a_revision_can_be_asked_for(tmp_path: Path) -> None:
    """A commit is fetched as such, and one that is on disk does not stand for another."""
    old, new = {"q4.gguf": b"GGUF old"}, {"q4.gguf": b"GGUF new"}
    with serving(hub_pages(new, sha="1" * 40)) as (host, _):
        assert hub_files(REPO, cache=tmp_path, endpoint=host).read_bytes() == b"GGUF new"
    with serving(hub_pages(old)) as (host, log):
        for _ in range(2):
            path = hub_files(REPO, revision=SHA, cache=tmp_path, endpoint=host)
            assert path.read_bytes() == b"GGUF old"
        assert len(log) == 2
    assert hub_files(REPO, cache=tmp_path, endpoint="nowhere").read_bytes() == b"GGUF new"
    with serving(hub_pages(old)) as (host, _), pytest.raises(ModelNotFoundError):
        hub_files(REPO, revision="2" * 40, cache=tmp_path, endpoint=host)


def test_names_that_lead_out_of_the_cache_are_not_followed(tmp_path: Path) -> None:
    """A hub that lists ../ writes nothing elsewhere."""
    files = {"../../../../evil.json": b"1", "/evil.json": b"1", "config.json": b"{}"}
    files |= {"tokenizer.json": b"{}", "model.safetensors": b"1"}
    with serving(hub_pages(files)) as (host, _):
        hub_files(REPO, cache=tmp_path / "cache", endpoint=host)
    assert list(tmp_path.rglob("evil.json")) == []
