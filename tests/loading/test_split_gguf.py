"""A GGUF model in several files is one model: fetched, counted, listed and removed as such."""

from pathlib import Path

import numpy as np
import pytest

from mtplx.errors import CheckpointError, DownloadError, ModelNotFoundError
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_known import is_later_part, part_names
from mtplx.loading.hub import hub_files
from mtplx.loading.local_models import local_models
from mtplx.loading.remove import removal_of
from mtplx.loading.resolve import NOWHERE, resolve
from tests.foreign import write_gguf
from tests.loading.hub_layout import empty_cache, listed, pulled_from, put_repo
from tests.loading.local_server import REPO, hub_pages, serving

NAMES = [f"big-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Three files with a tensor each, the first with a model's metadata."""
    folder = tmp_path_factory.mktemp("parts")
    for i, name in enumerate(NAMES):
        fields = {"split.no": i, "split.count": 3, "split.tensors.count": 3}
        tensors = {f"blk.{i}.attn_norm.weight": np.full(32 * (i + 1), i, np.float32)}
        write_gguf(folder / name, tensors, fields)
    return {name: (folder / name).read_bytes() for name in NAMES}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", [REPO, f"{REPO}/{NAMES[0]}", f"{REPO}/{NAMES[2]}"])
def test_all_parts_are_pulled(
    name: str, parts: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the repository, whose only model it is, or any part; the first leads to the rest."""
    with serving(hub_pages({**parts, "README.md": b""})) as (host, _):
        pulled = pulled_from(host, monkeypatch, name)
    assert pulled.path.name == NAMES[0]
    assert (pulled.num_files, pulled.num_checked) == (3, 3)
    assert pulled.num_bytes == sum(map(len, parts.values()))
    assert resolve(name) == pulled.path
    assert len(open_gguf(pulled.path).tensors) == 3


def test_a_model_in_a_folder_of_the_repository_is_pulled_whole(
    parts: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another model lies beside it."""
    files = {f"BF16/{name}": content for name, content in parts.items()} | {"q4.gguf": b"GGUF"}
    with serving(hub_pages(files)) as (host, log):
        pulled = pulled_from(host, monkeypatch, f"{REPO}/BF16/{NAMES[0]}")
    assert pulled.num_files == 3
    assert not any("q4" in path for path in log)


def test_two_models_are_offered_as_two(parts: dict[str, bytes], tmp_path: Path) -> None:
    """Not as four files, of which two cannot be chosen."""
    files = parts | {"q4.gguf": b"GGUF"}
    with (
        serving(hub_pages(files)) as (host, _),
        pytest.raises(ModelNotFoundError, match=f"2 GGUF models.*{REPO}/{NAMES[0]}, {REPO}/q4"),
    ):
        hub_files(REPO, cache=tmp_path, endpoint=host)


def test_a_part_that_the_hub_lacks_is_named(parts: dict[str, bytes], tmp_path: Path) -> None:
    """Before anything is fetched."""
    files = {name: content for name, content in parts.items() if name != NAMES[1]}
    with serving(hub_pages(files)) as (host, log):
        with pytest.raises(ModelNotFoundError, match=f"one of 3 files.*not {NAMES[1]}"):
            hub_files(REPO, cache=tmp_path, endpoint=host)
        assert not any("resolve" in path for path in log)


def test_a_pull_that_was_broken_off_goes_on(
    parts: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is here of it is one entry, which does not load, until the rest comes."""
    pages = hub_pages(parts)
    broken = {path: page for path, page in pages.items() if NAMES[1] not in path}
    with serving(broken) as (host, _), pytest.raises(DownloadError):
        pulled_from(host, monkeypatch, REPO)
    (model,) = local_models(NOWHERE, hub_cache=cache)
    assert (model.name, model.kind) == (f"{REPO}/{NAMES[0]}", "unfinished")
    assert model.num_bytes == len(parts[NAMES[0]])
    with serving(pages) as (host, log):
        assert pulled_from(host, monkeypatch, REPO).num_files == 3
    assert [path.rpartition("/")[2] for path in log if "resolve" in path] == NAMES[1:]


def test_a_damaged_part_alone_is_fetched_again(
    parts: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is not the one that the model is known by."""
    snapshot = put_repo(cache, REPO, parts, fetched=True)
    (snapshot / NAMES[2]).resolve().write_bytes(b"0" * len(parts[NAMES[2]]))
    with serving(hub_pages(parts)) as (host, log):
        pulled_from(host, monkeypatch, REPO)
    assert [path.rpartition("/")[2] for path in log if "resolve" in path] == NAMES[2:]
    assert (snapshot / NAMES[2]).read_bytes() == parts[NAMES[2]]


def test_it_is_listed_once(parts: dict[str, bytes], cache: Path) -> None:
    """With the size of all parts; where one lacks, with that, and still once."""
    snapshot = put_repo(cache, REPO, parts)
    (model,) = local_models(NOWHERE, hub_cache=cache)
    assert model.name == f"{REPO}/{NAMES[0]}"
    assert model.num_bytes == sum(map(len, parts.values()))
    assert model.problem is None
    (snapshot / NAMES[1]).unlink()
    (model,) = local_models(NOWHERE, hub_cache=cache)
    assert model.num_bytes == len(parts[NAMES[0]]) + len(parts[NAMES[2]])
    assert model.problem == "lacks a part"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_removed_whole(name: str, parts: dict[str, bytes], cache: Path) -> None:
    """By any of its names, and what else was fetched of the repository stays."""
    put_repo(cache, REPO, {**parts, "q4.gguf": b"GGUF"}, fetched=True)
    removal = removal_of(f"{REPO}/{name}", NOWHERE, hub_cache=cache)
    assert removal.num_bytes == removal.run() == sum(map(len, parts.values()))
    assert [path.rpartition("/")[2] for path in listed(cache) if "snapshots" in path] == ["q4.gguf"]


def test_a_folder_of_parts_stands_for_their_model(parts: dict[str, bytes], tmp_path: Path) -> None:
    """As one of a single file does; a part that is missing is named when it is opened."""
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    assert resolve(str(tmp_path)) == tmp_path / NAMES[0]
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(CheckpointError, match=f"one of 3 files.*{NAMES[1]} is not there"):
        open_gguf(resolve(str(tmp_path)))


def test_its_fingerprint_is_of_all_parts(parts: dict[str, bytes], tmp_path: Path) -> None:
    """What was tuned or trained for one is not taken for another that begins alike."""
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    before = fingerprint(tmp_path / NAMES[0])
    assert fingerprint(tmp_path / NAMES[1]) == before
    (tmp_path / NAMES[2]).write_bytes(parts[NAMES[2]][:-1] + b"1")
    assert fingerprint(tmp_path / NAMES[0]) != before


@pytest.mark.parametrize("name", ["x-00005-of-00003.gguf", "x-00000-of-00002.gguf"])
def test_a_number_that_no_part_has_is_part_of_a_name(name: str) -> None:
    """Such a file is a model of its own, wherever it is listed."""
    assert part_names(name) == [name]
    assert not is_later_part(name)
