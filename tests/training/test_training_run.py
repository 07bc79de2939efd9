"""Whole training runs on a tiny model, in processes of their own, stopped in every way there is."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import TrainingError
from tests.training.small import small_plan

ROOT = Path(__file__).parents[2]
# Runs that end in the same numbers need the same order of additions, which only MLX's own BLAS
# promises for any alignment of memory.
EXACT = "mlx"
LONG: dict[str, Any] = {  # a chunk takes many seconds
    "passage_length": 1000,
    "rows_per_chunk": 64,
    "own_tokens": 200_000,
    "num_anchors": 8,
}


@contextmanager
def running(
    folder: Path, model: Path, blas: str = EXACT, **changes: Any
) -> Iterator[subprocess.Popen[str]]:
    """A small run in a process of its own; it is gone afterwards."""
    arguments = [str(folder), str(model), blas, json.dumps(changes)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.training.small", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], is_there: Callable[[str], bool]) -> str:
    """The first line the run prints that is the one waited for."""
    assert process.stdout is not None
    for line in process.stdout:
        if is_there(line.strip()):
            return line.strip()
    process.wait()
    assert process.stderr is not None
    raise AssertionError(f"the run ended before that: {process.stderr.read()}")


def finish(folder: Path, model: Path, **changes: Any) -> None:
    """Let a run come to its end."""
    with running(folder, model, **changes) as process:
        wait_for(process, "finished".__eq__)


def stop(folder: Path, model: Path, line: str, how: signal.Signals) -> int:
    """Stop a run when it prints `line`, and give its exit code."""
    with running(folder, model) as process:
        wait_for(process, line.__eq__)
        process.send_signal(how)
        return process.wait(30)


def bits(path: Path) -> dict[str, tuple[object, bytes]]:
    """Shape and bytes of every tensor in a file."""
    import mlx.core as mx
    import numpy as np

    arrays = mx.load(str(path))
    assert isinstance(arrays, dict)
    return {name: (a.shape, np.array(a.view(mx.uint8)).tobytes()) for name, a in arrays.items()}


def assert_same_end(folder: Path, other: Path) -> None:
    """Two runs gave the same parameters, optimiser and head, bit for bit."""
    for name in ("checkpoint.safetensors", "head.safetensors"):
        one, two = bits(folder / name), bits(other / name)
        assert one.keys() == two.keys()
        assert len(one) > 8
        assert {tensor for tensor in one if one[tensor] != two[tensor]} == set()


def children(pid: int) -> set[int]:
    """Processes that a process has started and that are still there."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in table.stdout.splitlines()]
    return {int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")}


def are_gone(pids: set[int], within_s: float) -> bool:
    """Whether none of these processes is left, or none is soon."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        table = subprocess.run(
            ["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in table.stdout.splitlines()]
        if not pids & {int(row[0]) for row in rows if not row[1].startswith("Z")}:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(folder, tiny_model)
    return folder


def with_its_text(folder: Path, other: Path) -> Path:
    """A run that has all the text of another one and has not begun to train."""
    shutil.copytree(other, folder, ignore=shutil.ignore_patterns("*.safetensors", "log.txt"))
    (folder.parent / "text.txt").write_bytes((other.parent / "text.txt").read_bytes())
    return folder


@pytest.mark.slow
def test_the_same_plan_gives_the_same_head(
    uninterrupted: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Bit for bit, also with another number of workers and checkpoints at other steps."""
    steps = {"steps_per_checkpoint": 3, "steps_per_measurement": 7}
    finish(tmp_path / "run", tiny_model, num_workers=1, **steps)
    assert_same_end(tmp_path / "run", uninterrupted)


POINTS = (
    "reading ordinary text 384/576",
    "writing held-out replies 3/6",
    "writing its own text 0/1152",
    "preparing examples 20/36",
    "training 1 deep 3/14",
    "training 1 deep 10/14",
    "training 1 deep 14/14",
    "training 3 deep 7/8",
)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_run_that_is_stopped_again_and_again_ends_like_any_other(
    uninterrupted: Path, tiny_model: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """Stopped in each of its parts and taken up each time, it gives the same bits."""
    folder = tmp_path / "run"
    for point in POINTS:
        assert stop(folder, tiny_model, point, how) != 0
    finish(folder, tiny_model)
    assert_same_end(folder, uninterrupted)


@pytest.mark.slow
def test_an_interrupt_keeps_the_steps_that_are_done(
    uninterrupted: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """After Ctrl-C training goes on with the next step, not with the last checkpoint's."""
    folder = with_its_text(tmp_path / "run", uninterrupted)
    stop(folder, tiny_model, "training 1 deep 8/14", signal.SIGINT)
    with running(folder, tiny_model) as process:
        line = wait_for(process, lambda line: line.startswith("training 1 deep"))
    assert int(line.split()[-1].split("/")[0]) >= 9


def is_writing(line: str) -> bool:
    return line.startswith("writing its own text") and not line.endswith(" 0/256000")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_run(tiny_model: Path, tmp_path: Path, how: signal.Signals) -> None:
    """However a run ends in the middle of a long chunk, its workers end within seconds."""
    with running(tmp_path / "run", tiny_model, **LONG) as process:
        wait_for(process, is_writing)
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(how)
        process.wait(20)
        assert are_gone(workers, within_s=5)
    assert not list((tmp_path / "run").glob("own-*.npz"))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_of(tiny_model: Path, tmp_path: Path) -> None:
    """The run ends at once, says how the worker ended, and takes the others with it."""
    with running(tmp_path / "run", tiny_model, **LONG) as process:
        wait_for(process, is_writing)
        workers = children(process.pid)
        subprocess.run(["kill", "-9", str(min(workers))], check=True)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "ended early (signal 9). If memory ran out, try fewer --workers" in said
        assert said.count("\n") == 1
        assert are_gone(workers, within_s=5)


@pytest.mark.slow
def test_what_a_worker_complains_of_is_shown(tiny_model: Path, tmp_path: Path) -> None:
    """The last line of a failed worker's errors is in the message, all of them in the log."""
    from mtplx.loading.load import load
    from mtplx.models.llama import LlamaTarget
    from mtplx.training.crew import write_own_text

    plan = small_plan(tmp_path / "run", tiny_model)
    target = load(tiny_model).target
    assert isinstance(target, LlamaTarget)
    plan.folder.mkdir()
    lost = small_plan(plan.folder, tmp_path / "lost.gguf")
    with pytest.raises(TrainingError, match=r"exit code 1.*There is no file or folder.*lost.gguf"):
        write_own_text(lost, target, lambda done, total: None)
    assert "lost.gguf" in (plan.folder / "log.txt").read_text()
    assert not list(plan.folder.glob("own-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "fits_text"), [(20, False), (60, True)])
def test_a_disk_that_fills_up_is_one_clear_line(
    uninterrupted: Path, tiny_model: Path, tmp_path: Path, allowed: int, fits_text: bool
) -> None:
    """While a worker writes text, and when a checkpoint is stored; nothing is left half-written."""
    folder = with_its_text(tmp_path / "run", uninterrupted)
    (folder / "own-00001.npz").unlink()
    command = f"ulimit -f {allowed}; exec {sys.executable} -m tests.training.small "
    done = subprocess.run(
        ["bash", "-c", f"{command} {folder} {tiny_model} {EXACT} '{{}}'"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "larger than this system allows" in done.stderr
    assert (folder / "own-00001.npz").exists() == fits_text
    assert not list(folder.glob(".*-*"))
    assert not list(folder.glob("*.safetensors"))
    finish(folder, tiny_model)
    assert_same_end(folder, uninterrupted)


@pytest.mark.slow
def test_another_plan_in_the_same_folder_is_refused(uninterrupted: Path, tiny_model: Path) -> None:
    """Nothing that was made with other options is mixed in; the folder stays as it was."""
    before = {path: path.read_bytes() for path in uninterrupted.glob("*.*")}
    others: tuple[dict[str, Any], ...] = ({"num_blocks": 2}, {"seed": 5}, {"shortlist_size": 99})
    for changes in others:
        with running(uninterrupted, tiny_model, **changes) as process:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 1
            assert said.startswith("mtplx: This is not the run that was begun in")
    assert {path: path.read_bytes() for path in uninterrupted.glob("*.*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "mlx"])
def test_a_run_in_pytorch_goes_on_with_either_engine(
    uninterrupted: Path, tiny_model: Path, tmp_path: Path, engine: str
) -> None:
    """Its text and its steps are kept, and it ends in a head of the usual tensors."""
    folder = tmp_path / "run"
    with running(folder, tiny_model, engine="torch", num_workers=1) as process:
        wait_for(process, "training 1 deep 9/14".__eq__)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    text = {path: path.read_bytes() for path in folder.glob("*.npz")}
    with running(folder, tiny_model, engine=engine) as process:
        line = wait_for(process, lambda line: line.startswith("training 1 deep"))
        assert int(line.split()[-1].split("/")[0]) >= 10
        wait_for(process, "finished".__eq__)
    assert {path: path.read_bytes() for path in folder.glob("*.npz")} == text
    head, usual = (bits(path / "head.safetensors") for path in (folder, uninterrupted))
    assert [(name, head[name][0]) for name in head] == [(name, usual[name][0]) for name in usual]
    assert head != usual


@pytest.mark.slow
def test_a_model_without_a_template_is_trained_on_bare_text(tmp_path: Path) -> None:
    """Base models get a head as well; it is found to fit and drafts exactly."""
    from mtplx.loading.load import load
    from mtplx.training.pipeline import run
    from tests.tiny import finish as text_of
    from tests.tiny import plain, start
    from tests.tiny_gguf import write_model

    path = write_model(tmp_path / "bare.gguf", template=None)
    plan = small_plan(tmp_path / "run", path)
    trained = run(plan, load(path), lambda report: None)
    assert trained.control.num_anchors > 0
    model = load(path, head=trained.head)
    prompt = [9, 8, 7, 6, 5]
    drafted = text_of(start(model.new_state(prompt), prompt, depth=3))
    assert drafted == plain(model.target, prompt)
