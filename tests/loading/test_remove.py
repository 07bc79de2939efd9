"""Removing takes what was fetched here, all of it, and not one file more."""

import fcntl
import shutil
from pathlib import Path

import pytest

from mtplx.errors import FileAccessError, ModelNotFoundError
from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import PART, Fetched, record
from mtplx.loading.remove import removal_of
from mtplx.loading.resolve import NOWHERE, Places
from tests.loading.hub_layout import CHECKPOINT, listed, put_repo

REPO = "owner/name"
OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mtplx.loading.resolve.hub_cache_dir", lambda: tmp_path / "hub")
    monkeypatch.chdir(tmp_path)


def remove(name: str, tmp_path: Path, places: Places = NOWHERE) -> int:
    removal = removal_of(name, places, hub_cache=tmp_path / "hub")
    num_bytes = removal.run()
    assert num_bytes == removal.num_bytes  # what was announced
    return num_bytes


def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "mtplx" / "models" / SMOLLM2.file_name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF" + bytes(96))
    return path


@pytest.mark.parametrize("by_path", [False, True])
def test_a_known_model_is_removed(tmp_path: Path, by_path: bool) -> None:
    """By its alias or its path; a damaged one as well."""
    path = own_file(tmp_path)
    assert remove(str(path) if by_path else "smollm2", tmp_path) == 100
    assert not path.exists()


def test_a_repository_that_was_fetched_here_goes_whole(tmp_path: Path) -> None:
    """Nothing is left of it, not even its folder; other repositories stay."""
    put_repo(tmp_path / "hub", REPO, CHECKPOINT, fetched=True)
    put_repo(tmp_path / "hub", "owner/other", CHECKPOINT)
    before = listed(repo_folder("owner/other", tmp_path / "hub"))
    assert remove(REPO, tmp_path) == sum(map(len, CHECKPOINT.values()))
    assert not repo_folder(REPO, tmp_path / "hub").exists()
    assert listed(repo_folder("owner/other", tmp_path / "hub")) == before


def test_what_another_program_put_there_is_refused(tmp_path: Path) -> None:
    """With the command that would do it."""
    put_repo(tmp_path / "hub", REPO, CHECKPOINT)
    before = listed(tmp_path / "hub")
    with pytest.raises(FileAccessError, match=r"another program.*`hf cache rm model/owner/name`"):
        remove(REPO, tmp_path)
    assert listed(tmp_path / "hub") == before


def test_files_of_others_in_the_same_repository_stay(tmp_path: Path) -> None:
    """Also a content that one of their files shares with one of ours."""
    put_repo(tmp_path / "hub", REPO, {"q4.gguf": b"GGUF4", "same.gguf": b"same"}, fetched=True)
    put_repo(tmp_path / "hub", REPO, {"weights.bin": b"theirs"})
    put_repo(tmp_path / "hub", REPO, {"copy.gguf": b"same"}, sha=OLD)
    folder = repo_folder(REPO, tmp_path / "hub")
    assert removal_of(REPO, NOWHERE, hub_cache=tmp_path / "hub").run() == len(b"GGUF4")
    left = list((folder / "snapshots").rglob("*.*"))
    assert sorted(path.name for path in left) == ["copy.gguf", "weights.bin"]
    assert all(path.read_bytes() for path in left)


def test_one_file_of_a_repository_is_that_one(tmp_path: Path) -> None:
    """The exact name; its neighbour of ours stays."""
    put_repo(tmp_path / "hub", REPO, {"q4.gguf": b"GGUF4", "q8.gguf": b"GGUF88"}, fetched=True)
    assert remove(f"{REPO}/q4.gguf", tmp_path) == 5
    snapshot = repo_folder(REPO, tmp_path / "hub") / "snapshots"
    assert [path.name for path in snapshot.rglob("*.gguf")] == ["q8.gguf"]
    with pytest.raises(ModelNotFoundError, match="not on this machine"):
        remove(f"{REPO}/q4.gguf", tmp_path)


def test_one_revision_is_that_one(tmp_path: Path) -> None:
    """What two revisions share stays for the other."""
    put_repo(tmp_path / "hub", REPO, CHECKPOINT, sha=OLD, fetched=True)
    new = {**CHECKPOINT, "model.safetensors": b"2" * 10}
    snapshot = put_repo(tmp_path / "hub", REPO, new, sha=NEW, fetched=True)
    assert removal_of(f"{REPO}@{OLD}", NOWHERE, hub_cache=tmp_path / "hub").run() == 1000
    assert {path.name for path in snapshot.iterdir()} == CHECKPOINT.keys()
    assert not (snapshot.parent / OLD).exists()


def test_what_a_broken_download_left_is_removed(tmp_path: Path) -> None:
    """Its parts have no name yet, but they are ours."""
    folder = repo_folder(REPO, tmp_path / "hub")
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / f"abc{PART}").write_bytes(b"1" * 70)
    record(folder, [Fetched(f"snapshots/{OLD}/model.safetensors", "abc")])
    assert remove(REPO, tmp_path) == 70
    assert not folder.exists()


def test_a_file_of_the_users_is_refused(tmp_path: Path) -> None:
    """By its path, by a name in a folder, and behind an alias, which is not what is removed."""
    path = tmp_path / "mine" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    places = Places((tmp_path / "mine",), {"big": str(path)})
    for name in (str(path), "m.gguf", "big"):
        with pytest.raises(FileAccessError, match=r"not fetched by MTPLX.*m\.gguf"):
            remove(name, tmp_path, places)
    assert path.exists()


def test_a_link_in_our_cache_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    """A file that the user keeps elsewhere and linked in."""
    real = tmp_path / "elsewhere.gguf"
    real.write_bytes(b"GGUF" + bytes(1000))
    own_file(tmp_path).unlink()
    link = tmp_path / "cache" / "mtplx" / "models" / SMOLLM2.file_name
    link.symlink_to(real)
    assert remove("smollm2", tmp_path) < 1000
    assert not link.is_symlink()
    assert real.exists()


@pytest.mark.parametrize("name", ["smollm2", "owner/nothing", "owner/name/q4.gguf"])
def test_what_is_not_here_is_said_to_be_missing(tmp_path: Path, name: str) -> None:
    """And nothing is fetched to be removed."""
    with pytest.raises(ModelNotFoundError, match="not on this machine"):
        remove(name, tmp_path)


def test_a_list_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    """A damaged or forged list removes nothing outside the repository's snapshots."""
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    folder = repo_folder(REPO, tmp_path / "hub")
    folder.mkdir(parents=True)
    for link in ("../../mine.txt", str(mine), "snapshots/../../../mine.txt", "blobs/x"):
        record(folder, [Fetched(link, "x")])
    with pytest.raises(ModelNotFoundError):
        remove(REPO, tmp_path)
    (folder / ".mtplx.json").write_text("{")
    with pytest.raises(ModelNotFoundError):
        remove(REPO, tmp_path)
    assert mine.exists()


def test_a_model_that_is_being_fetched_is_not_removed(tmp_path: Path) -> None:
    """The other process would go on writing into what is gone."""
    put_repo(tmp_path / "hub", REPO, CHECKPOINT, fetched=True)
    lock = tmp_path / "hub" / ".locks" / repo_folder(REPO, tmp_path / "hub").name / "mtplx.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FileAccessError, match="being fetched by another process"):
            remove(REPO, tmp_path)
    shutil.rmtree(lock.parent)
    assert remove(REPO, tmp_path) > 0
