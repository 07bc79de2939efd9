"""The processes that write the trunk's own text: started, watched, and never left behind."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, get_args

from mtplx import blas
from mtplx.errors import TrainingError
from mtplx.models.llama import LlamaTarget
from mtplx.training.plan import Plan
from mtplx.training.run_folder import LOG, chunk_path
from mtplx.training.worker import CACHE_BYTES, TICK

LOOK_EVERY_S = 0.2


@dataclass(slots=True)
class Worker:
    """A process and where its complaints go."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]


def write_own_text(plan: Plan, target: LlamaTarget, tell: Callable[[int, int], None]) -> None:
    """Have worker processes write the chunks that are missing. tell(done, total) counts tokens.

    Raises TrainingError with what a worker said if one of them fails.
    """
    numbers = range(plan.num_chunks)
    missing = [number for number in numbers if not chunk_path(plan.folder, number).exists()]
    if not missing:
        return
    total = plan.num_chunks * plan.chunk_tokens
    before = total - len(missing) * plan.chunk_tokens
    count = min(plan.num_workers or default_workers(plan, target), len(missing))
    with _working(plan, [missing[i::count] for i in range(count)]) as workers:
        ticks = 0
        while any(worker.process.poll() is None for worker in workers):
            for worker in workers:
                ticks += _ticks(worker)
                if worker.process.poll():
                    raise _failure(plan, worker)
            tell(before + ticks * plan.rows_per_chunk, total)
            time.sleep(LOOK_EVERY_S)
        for worker in workers:
            if worker.process.returncode:
                raise _failure(plan, worker)
    tell(total, total)


def default_workers(plan: Plan, target: LlamaTarget) -> int:
    """One for each core as far as half of the memory goes; one where MLX has a GPU."""
    import mlx.core as mx

    if mx.metal.is_available():
        return 1
    dims = target.dims
    per_token = 2 * 4 * dims.num_layers * dims.num_kv_heads * dims.head_dim
    weights = sum(array.nbytes for array in target.arrays())
    each = weights + 2 * per_token * plan.chunk_tokens + CACHE_BYTES
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(blas.num_cores(), memory // 2 // each))


@contextmanager
def _working(plan: Plan, shares: Sequence[Sequence[int]]) -> Iterator[list[Worker]]:
    """A worker for each share of chunk numbers; none is left when the block ends."""
    workers: list[Worker] = []
    try:
        for share in shares:
            workers.append(_start(plan, share))  # noqa: PERF401  (an error must find the others)
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.wait()
            for stream in (worker.process.stdin, worker.process.stdout, worker.errors):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]  # both are pipes


def _start(plan: Plan, numbers: Sequence[int]) -> Worker:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "mtplx.training.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=os.environ | one_thread,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    name = blas.serving().name
    choice = name if name in get_args(blas.Choice) else "auto"
    task = {"plan": plan.to_json(), "numbers": list(numbers), "blas": choice}
    with contextlib.suppress(
        BrokenPipeError
    ):  # one that is gone already is met when it is looked at
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
    return Worker(process, errors)


def _ticks(worker: Worker) -> int:
    """Positions written since the last call."""
    assert worker.process.stdout is not None
    return (worker.process.stdout.read() or b"").count(TICK)


def _failure(plan: Plan, worker: Worker) -> TrainingError:
    """What a worker that failed said; all of it goes to the run's log."""
    worker.errors.seek(0)
    said = worker.errors.read().decode(errors="replace").strip()
    code = worker.process.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if not said:
        return TrainingError(
            f"A process that writes text ended early ({how}). If memory ran out, try fewer "
            "--workers; the same command goes on."
        )
    with contextlib.suppress(OSError), (plan.folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"a process that writes text ended with {how}:\n{said}\n")
    return TrainingError(
        f"A process that writes text ended early ({how}): {said.splitlines()[-1]} "
        "The same command goes on when this is mended."
    )
