"""Checkpoints from the hub: fetched once, whole, and found again without the network."""

import json
from pathlib import Path

import pytest

from mtplx.errors import DownloadError, ModelNotFoundError
from mtplx.loading.hub import hub_files
from tests.loading.local_server import serving

REPO = "someone/model"
SHA = "0" * 40
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


def hub_pages(files: dict[str, bytes]) -> dict[str, bytes]:
    """What the hub answers for a repository with these files."""
    tree = [
        {"type": "file", "path": name, "size": len(data), "oid": "1" * 40}
        for name, data in files.items()
    ]
    siblings = [{"rfilename": name} for name in files]
    info = {"id": REPO, "sha": SHA, "siblings": siblings, "tags": [], "private": False}
    pages = dict.fromkeys(
        (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/main"), json.dumps(info).encode()
    )
    for revision in ("main", SHA):
        pages[f"/api/models/{REPO}/tree/{revision}"] = json.dumps(tree).encode()
        for name, data in files.items():
            pages[f"/{REPO}/resolve/{revision}/{name}"] = data
    return pages


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
    for name in present | {"config.json", "model.safetensors.index.json"}:
        (folder / name).write_bytes(SHARDED[name])
    with serving(hub_pages(SHARDED)) as (host, log):
        assert hub_files(REPO, cache=tmp_path, endpoint=host) == folder
    assert (folder / "two.safetensors").read_bytes() == SHARDED["two.safetensors"]
    assert (log == []) == ("two.safetensors" in present)


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
