"""Writing that leaves the old file or the new one."""

import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.errors import FileAccessError
from mtplx.files import locked, replacing, write_atomically


def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    """An error half way through keeps what was there and leaves nothing beside it."""
    path = tmp_path / "settings"
    write_atomically(path, b"old")

    def write_half() -> None:
        with replacing(path) as part:
            part.write_bytes(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["settings"]
    assert path.read_bytes() == b"old"


def test_who_reads_while_a_file_is_replaced_reads_the_old_one(tmp_path: Path) -> None:
    """A reader never meets a mixture of old and new."""
    path = tmp_path / "settings"
    path.write_bytes(b"old and longer")
    with path.open("rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"old and longer"
    assert path.read_bytes() == b"new"


def test_a_written_file_has_ordinary_rights(tmp_path: Path) -> None:
    """Being written atomically does not hide a file from others."""
    path = tmp_path / "settings"
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


_FULL_DISK = """
import resource, sys
from pathlib import Path
from mtplx.errors import FileAccessError
from mtplx.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 5000)
except FileAccessError as error:
    print(error)
"""


def test_a_write_that_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    """A refused write names the file, keeps the old one and leaves nothing beside it."""
    path = tmp_path / "settings"
    path.write_bytes(b"old")
    result = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, path], capture_output=True, text=True, check=True
    )
    assert str(path) in result.stdout
    assert "ulimit" in result.stdout
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """Writing where no folder is says so instead of showing a traceback."""
    with pytest.raises(FileAccessError, match=r"nowhere.*no such file or folder"):
        write_atomically(tmp_path / "nowhere" / "settings", b"")


_HOLDER = """
import sys
from pathlib import Path
from mtplx.files import locked
with locked(Path(sys.argv[1]), lambda: print("waiting", flush=True)) as has_lock:
    print(has_lock, flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_is_inside(tmp_path: Path) -> None:
    """The second says that it waits, and comes in when the first has gone, killed or not."""
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, **pipes) as first,  # type: ignore[call-overload]
        subprocess.Popen(command, **pipes) as second,  # type: ignore[call-overload]
    ):
        lines = {first: first.stdout.readline(), second: second.stdout.readline()}
        assert sorted(lines.values()) == ["True\n", "waiting\n"]
        inside = next(process for process, line in lines.items() if line == "True\n")
        outside = second if inside is first else first
        inside.kill()
        assert outside.stdout.readline() == "True\n"
        outside.kill()


def test_a_lock_that_cannot_be_made_is_named() -> None:
    """A place where nobody may write."""
    with (
        pytest.raises(FileAccessError, match="/proc/lock"),
        locked(Path("/proc/lock"), lambda: None),
    ):
        pass
