"""A conversion that was stopped, however, goes on; nothing half-made is ever at its target."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtplx.conversion.convert import Tell, convert
from mtplx.conversion.plan import Options
from mtplx.errors import FileAccessError
from tests.tiny_folder import write_folder

OPTIONS = Options(bits=4, shard_bytes=100_000)
NUM_FILES = 9
ROOT = Path(__file__).parents[2]
# What a process does that is to be killed or to meet its limits: the conversion, and nothing else.
CONVERT = """
import resource, sys, time
from pathlib import Path
from mtplx.conversion.convert import convert
from mtplx.conversion.plan import Options
from mtplx.errors import MtplxError

limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    convert(Path(sys.argv[1]), Path(sys.argv[2]), Options(bits=4, shard_bytes=100_000),
            tell=lambda *told: (print(*told, flush=True), time.sleep(0.01)))
except MtplxError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("original") / "model", hidden_size=256)


@pytest.fixture(scope="module")
def expected(original: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a conversion that nothing disturbed."""
    out = tmp_path_factory.mktemp("expected") / "out"
    convert(original, out, OPTIONS, tell=quiet)
    return contents(out)


def quiet(what: str, done_bytes: int, total_bytes: int) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def stopping(at: str, calls: int) -> Tell:
    """Ctrl-C at a part's n-th sign of life."""
    left = calls

    def tell(what: str, done_bytes: int, total_bytes: int) -> None:
        nonlocal left
        left -= what == at
        if left < 0:
            raise KeyboardInterrupt

    return tell


def stopped(original: Path, out: Path, tell: Tell, options: Options = OPTIONS) -> Path:
    """The work folder of a conversion that was stopped with Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        convert(original, out, options, tell=tell)
    assert not out.exists()
    return out.with_name(f"{out.name}.converting")


@pytest.mark.parametrize(("at", "calls"), [("writing", 8), ("writing", 19), ("comparing", 4)])
def test_finished_files_are_kept(
    original: Path, tmp_path: Path, expected: dict[str, bytes], at: str, calls: int
) -> None:
    """They are not written again, and what comes out is what comes out undisturbed."""
    out = tmp_path / "out"
    work = stopped(original, out, stopping(at, calls))
    finished = {file: file.stat().st_mtime_ns for file in work.glob("*.safetensors")}
    assert finished
    result = convert(original, out, OPTIONS, tell=quiet)
    assert result.num_kept == len(finished)
    assert {out / f.name: time_ns for f, time_ns in finished.items()} == {
        out / f.name: (out / f.name).stat().st_mtime_ns for f in finished
    }
    assert contents(out) == expected
    assert os.listdir(tmp_path) == ["out"]


def test_what_was_damaged_meanwhile_is_made_again(
    original: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """One bit, the end, or the whole of a finished file; and what a power cut left half-written."""
    out = tmp_path / "out"
    work = stopped(original, out, stopping("comparing", 0))
    files = sorted(work.glob("*.safetensors"))
    flipped = bytearray(files[0].read_bytes())
    flipped[-100] ^= 1
    files[0].write_bytes(flipped)
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].unlink()
    (work / ".model-00001.safetensors.part").write_bytes(b"half")
    result = convert(original, out, OPTIONS, tell=quiet)
    assert result.damaged == [file.name for file in files[:3]]
    assert result.num_kept == NUM_FILES - 3
    assert contents(out) == expected


def test_parts_of_another_conversion_are_not_taken(original: Path, tmp_path: Path) -> None:
    """Other bits, another original, or a folder that is none of ours; --force clears them."""
    out = tmp_path / "out"
    work = stopped(original, out, stopping("writing", 5), Options(bits=8, shard_bytes=100_000))
    with pytest.raises(FileAccessError, match=r"another conversion.*options.*--force"):
        convert(original, out, OPTIONS, tell=quiet)
    (work / "conversion.json").write_text("{")
    with pytest.raises(FileAccessError, match="--force"):
        convert(original, out, OPTIONS, tell=quiet)
    result = convert(original, out, OPTIONS, tell=quiet, force=True)
    assert result.num_kept == 0
    other = write_folder(tmp_path / "other", hidden_size=512)
    stopped(original, tmp_path / "second", stopping("writing", 5))
    with pytest.raises(FileAccessError, match=r"another conversion.*source"):
        convert(other, tmp_path / "second", OPTIONS, tell=quiet)


def test_two_at_a_time_do_not_meet(original: Path, tmp_path: Path) -> None:
    """The second one is told so, and the first one finishes."""
    out = tmp_path / "out"
    told: list[object] = []

    def tell(what: str, done_bytes: int, total_bytes: int) -> None:
        if not told:
            with pytest.raises(FileAccessError, match="in use") as refused:
                convert(original, out, OPTIONS, tell=quiet)
            told.append(refused)

    assert convert(original, out, OPTIONS, tell=tell).num_files == NUM_FILES
    assert told


def test_a_checkpoint_stays_until_the_new_one_is_whole(original: Path, tmp_path: Path) -> None:
    """What --force replaces is there until then, whatever stops the conversion."""
    out = tmp_path / "out"
    convert(original, out, Options(bits=8), tell=quiet)
    before = contents(out)
    with pytest.raises(KeyboardInterrupt):
        convert(original, out, OPTIONS, tell=stopping("comparing", 3), force=True)
    assert contents(out) == before
    convert(original, out, OPTIONS, tell=quiet, force=True)
    assert contents(out) != before


def test_a_disk_without_room_is_told_before_anything_is_written(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it takes and what is there; and fewer bits may be tried at once."""
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(FileAccessError, match="are free"):
        convert(original, tmp_path / "out", OPTIONS, tell=quiet)
    assert not list(tmp_path.glob("*/*.safetensors"))
    monkeypatch.undo()
    smaller = Options(bits=2, shard_bytes=100_000)
    assert convert(original, tmp_path / "out", smaller, tell=quiet).num_kept == 0


def process(original: Path, out: Path, limit: int = 0) -> subprocess.Popen[str]:
    """A conversion elsewhere that prints a line for each step. limit: bytes of a file at most."""
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(original), str(out), str(limit)],
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_full_disk_is_told_and_can_be_gone_on_from(
    original: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """One line with what to do, no half file, and the same command finishes the work."""
    out = tmp_path / "out"
    _, told = process(original, out, limit=60_000).communicate()
    assert told.startswith("Cannot write ")
    assert "Traceback" not in told
    assert not out.exists()
    result = convert(original, out, OPTIONS, tell=quiet)
    assert 0 < result.num_kept < NUM_FILES
    assert contents(out) == expected


@pytest.mark.slow
def test_killed_again_and_again_it_comes_to_the_same_end(
    original: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """kill -9 at random moments; at each of them the target is whole or not there."""
    out, moments, kills = tmp_path / "out", random.Random(7), 0
    while not out.exists():
        running = process(original, out)
        assert running.stdout is not None
        for _ in range(moments.randint(3, 18)):  # of 29 steps
            running.stdout.readline()
        time.sleep(moments.uniform(0, 0.01))
        running.kill()
        running.communicate()
        kills += running.returncode == -signal.SIGKILL
        assert kills < 60
    assert kills > 1
    assert contents(out) == expected
    assert os.listdir(tmp_path) == ["out"]
