"""What a measurement was taken on and with."""

import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx

import mtplx
from mtplx.blas import num_cores, serving


def machine() -> dict[str, object]:
    """Chip, cores, memory in bytes, systems and versions, as plain values."""
    blas = serving()
    return {
        "chip": chip(),
        "device": "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu",
        "cores": num_cores(),
        "memory": memory_bytes(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "mlx": _version("mlx"),
        "mlx_lm": _version("mlx-lm"),
        "mtplx": mtplx.__version__,
        "blas": " ".join(part for part in (blas.name, blas.version) if part),
        "threads": blas.threads,
    }


def chip() -> str:
    """The processor's name as the system gives it; its architecture where it gives none."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds since some start: on the clock, of work on all cores, of work for this process."""

    wall_s: float
    busy_s: float
    own_s: float


def cpu_time() -> CpuTime | None:
    """Now; None where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    busy = user + nice + system + irq + softirq + steal
    return CpuTime(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), time.process_time())


def other_cores(before: CpuTime | None, after: CpuTime | None) -> float | None:
    """How many cores worked for other processes between two times, on average."""
    if before is None or after is None:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / (after.wall_s - before.wall_s)


def busy_cores(sample_s: float = 0.3) -> float | None:
    """Cores at work for other processes now; the last minute's load where only that is told."""
    before = cpu_time()
    if before is None:
        with suppress(OSError):
            return os.getloadavg()[0]
        return None
    time.sleep(sample_s)
    return other_cores(before, cpu_time())


def is_busy(others: float | None) -> bool:
    """Whether other work distorts what is measured."""
    return others is not None and others > 0.25


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
