"""What `mtplx doctor` looks at. Each check gives findings and never raises."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from mtplx.errors import MtplxError

OLDEST_PYTHON = (3, 11)
OLDEST_MACOS = (14, 0)  # of MLX's wheels
OLDEST_GLIBC = (2, 35)  # of MLX's wheels
_IMPORT_MLX = "import mlx.core as mx; print(mx.__version__, mx.metal.is_available())"
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    remedy: what to do, where something should be done.
    broken: MTPLX does not run, or not rightly, until that is done; otherwise it is advice.
    """

    subject: str
    text: str
    remedy: str | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """The machine and the Python on it. translated: an Intel program under Rosetta."""

    system: str
    machine: str
    system_version: tuple[int, ...]
    python_version: tuple[int, int]
    translated: bool = False
    libc: str = ""


def this_host() -> Host:
    """Where this process runs."""
    mac = sys.platform == "darwin"
    libc, libc_version = platform.libc_ver()
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        system_version=_numbers(platform.mac_ver()[0] if mac else libc_version),
        python_version=(sys.version_info.major, sys.version_info.minor),
        translated=mac and _sysctl("sysctl.proc_translated") == "1",
        libc=libc,
    )


def platform_finding(host: Host) -> Finding:
    """Whether MLX exists for this machine and its system."""
    number = ".".join(map(str, host.system_version))
    if host.system == "Darwin":
        text = f"macOS {number} on {host.machine}"
        if host.translated:
            return Finding(
                "platform",
                f"{text}: this Python is an Intel program under Rosetta, and MLX has none for it",
                "Install an arm64 Python, from python.org or `arch -arm64 brew install python`.",
                broken=True,
            )
        if host.machine != "arm64":
            return Finding(
                "platform", f"{text}: an Intel Mac", "Use a Mac with Apple silicon, or Linux.", True
            )
        if host.system_version < OLDEST_MACOS:
            return Finding("platform", f"{text}: too old for MLX", "Update to macOS 14.", True)
        return Finding("platform", text)
    if host.system == "Linux":
        text = f"Linux on {host.machine}, {host.libc or 'another C library than glibc'} {number}"
        if host.machine not in ("x86_64", "aarch64"):
            return Finding("platform", text, "MLX is built for x86_64 and aarch64 only.", True)
        if host.libc != "glibc" or host.system_version < OLDEST_GLIBC:
            remedy = "Use a system with glibc 2.35 or newer, such as Debian 12 or Ubuntu 22.04."
            return Finding("platform", f"{text.rstrip()}: MLX is not built for it", remedy, True)
        return Finding("platform", text)
    return Finding(
        "platform", f"{host.system} on {host.machine}", "Use macOS or Linux (WSL 2 counts).", True
    )


def python_finding(host: Host) -> Finding:
    """Whether this Python is new enough."""
    text = f"{'.'.join(map(str, host.python_version))} ({sys.executable})"
    if host.python_version < OLDEST_PYTHON:
        return Finding("Python", text, "Install Python 3.11 or newer, and MTPLX in it.", True)
    return Finding("Python", text)


def mlx_findings(host: Host) -> list[Finding]:
    """Whether MLX can be imported, tried in another process because it may not survive."""
    command = [sys.executable, "-c", _IMPORT_MLX]
    try:
        tried = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("mlx", f"cannot be tried: {error}", "Install MTPLX again.", True)]
    if tried.returncode == 0:
        number, metal = tried.stdout.split()
        return [Finding("mlx", number), _metal(host, metal == "True")]
    last = (tried.stderr.strip().splitlines() or [f"it ends with {tried.returncode}"])[-1]
    return [Finding("mlx", f"cannot be imported: {last}", _mlx_remedy(host, last), True)]


def _metal(host: Host, available: bool) -> Finding:
    if available:
        return Finding("Metal", "serves")
    if host.system == "Darwin":
        remedy = "A virtual machine or a session without a GPU has none; run on the Mac itself."
        return Finding("Metal", "not available, the CPU serves", remedy)
    return Finding("Metal", "none on this system, the CPU serves")


def _mlx_remedy(host: Host, error: str) -> str:
    if host.system == "Darwin" and (26, 0) <= host.system_version < (26, 2):
        return "Update to macOS 26.2: MLX's package for macOS 26 needs it."
    if "No module named" in error:
        return "Run `python -m pip install mtplx` with the Python named above."
    return "Run `python -m pip install --force-reinstall mlx`."


def package_findings() -> list[Finding]:
    """Versions, and what of the requirements is missing or too old."""
    findings = []
    for name in ("mtplx", "mlx-lm"):
        try:
            findings.append(Finding(name, version(name)))
        except PackageNotFoundError:
            missing = "a checkout that is not installed" if name == "mtplx" else "not installed"
            remedy = None if name == "mtplx" else "Run `python -m pip install mlx-lm`."
            findings.append(Finding(name, missing, remedy))
    return [*findings, *map(_unmet_finding, _unmet())]


def _unmet_finding(requirement: str) -> Finding:
    return Finding(
        "packages",
        f"{requirement} is not met",
        f"Run `python -m pip install '{requirement}'`.",
        True,
    )


def _unmet() -> Iterator[str]:
    try:
        from packaging.requirements import Requirement

        needed = [Requirement(text) for text in requires("mtplx") or []]
    except (ImportError, PackageNotFoundError):
        return
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            met = requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            met = False
        if not met:
            yield f"{requirement.name}{requirement.specifier}"


def blas_finding() -> Finding:
    """What MLX multiplies with. Imports MLX."""
    from mtplx.blas import serving

    try:
        blas = serving()
    except MtplxError as error:
        return Finding("BLAS", str(error), "Run with --blas auto.", True)
    threads = f", {blas.threads} thread{'s' * (blas.threads != 1)}" if blas.threads else ""
    text = f"{blas.name} {blas.version or ''}".strip() + threads
    return Finding("BLAS", text + (f" ({blas.path})" if blas.path else ""), blas.notice)


def compiler_finding(host: Host) -> Finding | None:
    """Whether MLX can compile for the CPU; on Metal it needs no compiler."""
    if host.system != "Linux":
        return None
    path = shutil.which("g++")
    if path is None:
        text = "not found: some steps run uncompiled, which is a little slower"
        return Finding("g++", text, "Install it (Debian, Ubuntu: `apt install g++`).")
    place = Path(tempfile.gettempdir()) / "mlx"  # where MLX compiles to and loads from
    if place.exists() and place.stat().st_uid != os.geteuid():
        text = f"{path}, but {place}, where MLX puts what it compiles, belongs to another user"
        return Finding("g++", text, "Set TMPDIR to a folder of your own.", broken=True)
    return Finding("g++", path)


def _sysctl(name: str) -> str:
    try:
        command = ["/usr/sbin/sysctl", "-n", name]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
