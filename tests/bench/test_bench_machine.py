"""What is told of the machine and of reading its memory."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.bench.ceiling import read_ceiling, weight_bytes_per_token
from mtplx.machine import CpuTime, chip, cpu_time, is_busy, memory_bytes, other_cores
from tests.tiny import DIMS, tiny_target


def test_a_pass_reads_every_weight_but_an_embedding_of_its_own() -> None:
    """Of an embedding that is not the output layer a pass reads one row, which is not counted."""
    target = tiny_target()
    every = sum(array.nbytes for array in target.arrays())
    embedding = 4 * DIMS.vocab_size * DIMS.hidden_size
    assert weight_bytes_per_token(target) == every - embedding


def test_a_pass_reads_a_tied_output_layer_once() -> None:
    """An embedding that is the output layer is read, and counted once."""
    target = tiny_target()
    tied = replace(target, lm_head=target.embedding)
    assert weight_bytes_per_token(tied) == weight_bytes_per_token(target)
    assert weight_bytes_per_token(tied) == sum(array.nbytes for array in tied.arrays())


def test_the_read_ceiling_is_not_below_what_one_thread_reads() -> None:
    """All threads together read at least as fast as one, at a speed that memory can have."""
    ceiling = read_ceiling(0)
    assert 0 < ceiling.one_thread <= ceiling.all_threads
    assert 1e8 < ceiling.all_threads < 1e14


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_what_the_kernel_says() -> None:
    """In bytes, as in /proc/meminfo."""
    line = Path("/proc/meminfo").read_text().splitlines()[0]
    assert memory_bytes() == pytest.approx(1024 * int(line.split()[1]), rel=0.02)


def test_the_chip_has_a_name_on_one_line() -> None:
    """Something a reader can tell machines apart by."""
    assert chip()
    assert "\n" not in chip()


def test_other_work_is_what_this_process_did_not_do() -> None:
    """All cores' time less this process's own, over the time on the clock; never negative."""
    before = CpuTime(wall_s=10.0, busy_s=100.0, own_s=5.0)
    assert other_cores(before, CpuTime(20.0, 122.0, 12.0)) == pytest.approx(1.5)
    assert other_cores(before, CpuTime(20.0, 106.0, 12.0)) == 0.0
    assert other_cores(None, before) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_work_of_this_process_is_not_other_work() -> None:
    """A core that this process keeps busy is counted, and counted as its own."""
    before = cpu_time()
    assert before is not None
    while (after := cpu_time()) is not None and after.own_s - before.own_s < 0.3:
        sum(range(10_000))
    assert after is not None
    assert after.busy_s - before.busy_s >= 0.25
    others = other_cores(before, after)
    assert others is not None
    cores = os.cpu_count() or 1
    assert others <= cores - 0.2 / (after.wall_s - before.wall_s)


@pytest.mark.parametrize(
    ("others", "busy"), [(0.0, False), (0.2, False), (0.3, True), (None, False)]
)
def test_a_busy_machine_is_told_from_a_quiet_one(others: float | None, busy: bool) -> None:
    """What daemons use is no work; a quarter of a core is."""
    assert is_busy(others) is busy
