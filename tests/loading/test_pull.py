"""Pulling ends with a model of which every byte was compared."""

import os
from pathlib import Path

import pytest

from mtplx.errors import DownloadError, ModelNotFoundError
from mtplx.loading import pull as pulling
from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.hub_record import fetched_files
from mtplx.loading.pull import Pulled, pull
from mtplx.loading.resolve import NOWHERE, Places
from tests.loading.hub_layout import CHECKPOINT, empty_cache, pulled_from, put_repo
from tests.loading.local_server import REPO, SHA, hub_pages, serving

NEW = "1" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


def test_a_checkpoint_is_pulled_at_one_revision(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its files, every one compared, and remembered as fetched here."""
    with serving(hub_pages(CHECKPOINT)) as (host, _):
        pulled = pulled_from(host, monkeypatch)
    assert pulled.revision == SHA
    assert (pulled.num_files, pulled.num_checked) == (3, 3)
    assert pulled.num_bytes == sum(map(len, CHECKPOINT.values()))
    assert len(fetched_files(pulled.path.parents[1])) == 3


def test_what_is_here_is_checked_without_the_network(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what another program fetched, which does not become ours by that."""
    snapshot = put_repo(cache, REPO, CHECKPOINT)
    pulled = pulled_from("http://127.0.0.1:9", monkeypatch)
    assert pulled.path == snapshot
    assert fetched_files(snapshot.parents[1]) == []


def test_a_damaged_file_is_fetched_again_at_the_same_revision(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the hub has a newer one."""
    snapshot = put_repo(cache, REPO, CHECKPOINT)
    (snapshot / "model.safetensors").resolve().write_bytes(b"0" * 1000)
    newer = hub_pages({**CHECKPOINT, "model.safetensors": b"new"}, sha=NEW)
    with serving(newer | hub_pages(CHECKPOINT) | {f"/api/models/{REPO}": b""}) as (host, log):
        assert pulled_from(host, monkeypatch).path == snapshot
    assert (snapshot / "model.safetensors").read_bytes() == CHECKPOINT["model.safetensors"]
    assert sum("resolve" in path for path in log) == 1


def test_an_update_asks_for_the_newest(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without one, what is here stays what is meant."""
    put_repo(cache, REPO, {"q4.gguf": b"GGUF old", "q8.gguf": b"GGUF"})
    files = {"q4.gguf": b"GGUF new", "q8.gguf": b"GGUF"}
    with serving(hub_pages(files, sha=NEW)) as (host, log):
        assert pulled_from(host, monkeypatch, f"{REPO}/q4.gguf").path.read_bytes() == b"GGUF old"
        assert log == []
        pulled = pulled_from(host, monkeypatch, f"{REPO}/q4.gguf", update=True)
    assert (pulled.revision, pulled.path.read_bytes()) == (NEW, b"GGUF new")
    assert pull(f"{REPO}/q4.gguf", NOWHERE).revision == NEW


def test_a_pull_that_was_broken_off_is_completed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came whole is not fetched a second time."""
    pages = hub_pages(CHECKPOINT)
    broken = {path: page for path, page in pages.items() if "model.safe" not in path}
    with serving(broken) as (host, _), pytest.raises(DownloadError):
        pulled_from(host, monkeypatch)
    with serving(pages) as (host, log):
        assert pulled_from(host, monkeypatch).num_files == 3
    assert [path for path in log if "resolve" in path] == [
        f"/{REPO}/resolve/{SHA}/model.safetensors"
    ]


def test_a_known_model_in_our_cache_is_checked(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the right size that is wrong inside goes, and comes anew."""
    path = tmp_path / "own" / "mtplx" / "models" / SMOLLM2.file_name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    os.truncate(path, SMOLLM2.num_bytes)

    def bring(known: object, **more: object) -> Path:
        assert not path.exists()
        path.write_bytes(b"GGUF anew")
        return path

    monkeypatch.setattr(pulling, "fetch", bring)
    assert pull("smollm2", NOWHERE).num_bytes == 9


def test_a_file_of_the_users_is_left_as_it_is(cache: Path, tmp_path: Path) -> None:
    """It is here; there is nothing to fetch or to compare with."""
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    places = Places((), {"mine": str(path)})
    for name in ("mine", str(path)):
        assert pull(name, places) == Pulled(path, None, 4, 1, 0)


def test_what_is_nowhere_is_said_to_be_missing(cache: Path) -> None:
    """A name that is no path, alias or id is no download."""
    with pytest.raises(ModelNotFoundError, match="no model 'nonsense'"):
        pull("nonsense", NOWHERE)
