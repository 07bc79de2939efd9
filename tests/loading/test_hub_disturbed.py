"""Downloads that are killed, that meet each other, or that the disk will not have."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mtplx.errors import FileAccessError
from mtplx.loading.hub import hub_files
from mtplx.loading.hub_record import PART
from tests.loading.local_server import REPO, hub_pages, serving

ROOT = Path(__file__).parents[2]
_FETCH = """
import sys
from pathlib import Path
from mtplx.errors import MtplxError
from mtplx.loading.hub import hub_files
import resource
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    print(hub_files("someone/model", cache=Path(sys.argv[1]), endpoint=sys.argv[2]).name)
except MtplxError as error:
    print(error)
"""


def fetching(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _FETCH, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not any(found.stat().st_size for found in path.rglob(f"*{PART}")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_download_is_no_model_and_goes_on(tmp_path: Path) -> None:
    """kill -9 in the middle: the next one asks for the rest alone."""
    pages = hub_pages({"q4.gguf": (content := b"GGUF" + os.urandom(60_000_000))})
    stall = threading.Event()
    with serving(pages, cut_at=40_000_000, stall=stall) as (host, _):
        process = fetching(tmp_path, host)
        wait_for(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        stall.set()
    assert list(tmp_path.rglob("q4.gguf")) == []
    with serving(pages) as (host, log):
        assert hub_files(REPO, cache=tmp_path, endpoint=host).read_bytes() == content
    assert " from " in log[-1]


def test_two_processes_fetch_a_file_once(tmp_path: Path) -> None:
    """The second waits and finds it there."""
    pages, stall = hub_pages({"q4.gguf": b"GGUF" * 100_000}), threading.Event()
    with serving(pages, cut_at=400_000, stall=stall) as (host, log):
        first = fetching(tmp_path, host)
        wait_for_request(log)
        second = fetching(tmp_path, host)
        time.sleep(0.2)
        stall.set()
        said = {first.communicate()[0], second.communicate()[0]}
    assert said == {"q4.gguf\n"}
    assert sum("resolve" in path for path in log) == 1


def wait_for_request(log: list[str]) -> None:
    deadline = time.monotonic() + 60
    while not any("resolve" in path for path in log):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_disk_that_fills_up_is_one_clear_line(tmp_path: Path) -> None:
    """A write that the system refuses names the reason; the model is not there."""
    with serving(hub_pages({"q4.gguf": b"GGUF" * 1_000_000})) as (host, _):
        said = fetching(tmp_path, host, 1_000_000).communicate()[0]
    assert "larger than this system allows" in said
    assert list(tmp_path.rglob("q4.gguf")) == []


def test_too_little_room_is_said_before_a_byte_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is needed and what there is; what is there already needs no room."""
    pages = hub_pages({"q4.gguf": b"GGUF" * 1_000_000})
    usage = type("Usage", (), {"free": 3_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    refused = pytest.raises(FileAccessError, match=r"4 MB more in .* and 3 MB are free")
    with serving(pages) as (host, log), refused:
        hub_files(REPO, cache=tmp_path, endpoint=host)
    assert not any("resolve" in path for path in log)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Also for the superuser, in a place where nobody may write."""
    refused = pytest.raises(FileAccessError, match=r"/proc/nowhere.*Change its rights")
    with serving(hub_pages({"q4.gguf": b"GGUF"})) as (host, _), refused:
        hub_files(REPO, cache=Path("/proc/nowhere"), endpoint=host)


def test_a_read_only_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is found without a lock, a list or any other write."""
    with serving(hub_pages({"q4.gguf": b"GGUF"})) as (host, _):
        path = hub_files(REPO, cache=tmp_path, endpoint=host)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("mtplx.loading.hub.download", None)
    assert hub_files(REPO, cache=tmp_path, endpoint="nowhere") == path
    assert sorted(tmp_path.rglob("*")) == before
