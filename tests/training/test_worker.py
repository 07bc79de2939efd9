"""A process that writes text, by itself."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtplx.training.run_folder import chunk_path
from tests.training.small import small_plan

ROOT = Path(__file__).parents[2]


def worker(
    folder: Path, model: Path, numbers: list[int], **changes: Any
) -> subprocess.Popen[bytes]:
    """One that has been given its task."""
    folder.mkdir(exist_ok=True)
    plan = small_plan(folder, model, **changes)
    process = subprocess.Popen(
        [sys.executable, "-m", "mtplx.training.worker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    task = {"plan": plan.to_json(), "numbers": numbers, "blas": "mlx"}
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.slow
def test_a_worker_writes_its_chunks_and_ticks_for_each_position(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The chunks it was given and no others, a tick for each position of each."""
    with worker(tmp_path / "run", tiny_model, [0, 2]) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait() == 0
        process.communicate()
    assert said == b"." * 48 * 2
    written = sorted((tmp_path / "run").glob("own-*.npz"))
    assert written == [chunk_path(tmp_path / "run", number) for number in (0, 2)]


@pytest.mark.slow
def test_a_worker_ends_with_whoever_started_it_and_not_before(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Ctrl-C is not for it to answer; the end of its standard input is."""
    long: dict[str, Any] = {"passage_length": 1000, "rows_per_chunk": 64}
    with worker(tmp_path / "run", tiny_model, [0], **long) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(20) == b"." * 20
        process.send_signal(signal.SIGINT)
        assert process.stdout.read(20) == b"." * 20
        process.stdin.close()
        process.stdin = None
        assert process.wait(5) == 1
        process.communicate()
    assert not list((tmp_path / "run").glob("own-*.npz"))


def test_a_worker_without_a_task_ends() -> None:
    """Nobody who starts it by hand is left waiting for a file."""
    done = subprocess.run(
        [sys.executable, "-m", "mtplx.training.worker"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
