"""Where files go, and what is said when they cannot go there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mtplx.errors import FileAccessError
from mtplx.paths import cache_dir, config_dir, data_dir, ensure_dir


def test_each_kind_of_file_has_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clearing the cache can touch neither settings nor what cannot be had again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    folders = {cache_dir(), config_dir(), data_dir()}
    assert not any(a != b and a.is_relative_to(b) for a in folders for b in folders)
    assert all(folder.is_relative_to(tmp_path) for folder in folders)


def test_looking_a_folder_up_creates_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Asking where things are leaves no empty folders behind."""
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("HOME", str(tmp_path))
    cache_dir(), config_dir(), data_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [cache_dir, config_dir, data_dir])
def test_a_user_without_a_home_is_told_so(
    place: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder named "~" appears wherever the program happens to run."""

    def nobody(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FileAccessError, match=r"no home folder.*Set HOME, or XDG_"):
        place()


def test_a_folder_is_made_with_its_parents_and_may_exist(tmp_path: Path) -> None:
    """The folder is there afterwards, the second time too."""
    wanted = tmp_path / "a" / "b"
    assert ensure_dir(wanted) == wanted == ensure_dir(wanted)
    assert wanted.is_dir()


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    """A folder that cannot be made is an error with its path in it."""
    (tmp_path / "taken").write_text("not a folder")
    with pytest.raises(FileAccessError, match="taken"):
        ensure_dir(tmp_path / "taken" / below)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system nobody may write")
def test_a_folder_nobody_may_write_is_named() -> None:
    """No right to create is an error that says what to do, even for root."""
    with pytest.raises(FileAccessError, match=r"/proc/mtplx.*Change its rights"):
        ensure_dir(Path("/proc/mtplx"))
