"""What else could change how fast this machine is: power, heat and other programs."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mtplx.machine import CpuTime, cpu_time, is_busy, other_cores

_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Conditions:
    """At one moment. told: what the system says, by what it is called there.

    Nothing that needs rights of an administrator is asked.
    """

    told: Mapping[str, str]
    time: CpuTime | None = field(default=None, compare=False)


def conditions() -> Conditions:
    """Now."""
    told = {"load": f"{os.getloadavg()[0]:.2f}"} if hasattr(os, "getloadavg") else {}
    told |= _mac() if sys.platform == "darwin" else _linux()
    return Conditions(told, cpu_time())


def remarks(before: Conditions, after: Conditions) -> tuple[str, ...]:
    """What a person should know of a run between two moments, a line each."""
    lines = []
    others = other_cores(before.time, after.time)
    if others is not None and is_busy(others):
        lines.append(
            f"Other programs kept {others:.1f} cores busy meanwhile: speeds are too low and noisy."
        )
    for name, words in _WORTH_TELLING.items():
        values = [told[name] for told in (before.told, after.told) if name in told]
        if any(value not in _HARMLESS[name] for value in values):
            lines.append(f"{words}: {' -> '.join(dict.fromkeys(values))}.")
    return tuple(lines)


_WORTH_TELLING = {
    "power": "The machine was not on mains power",
    "low power mode": "Low power mode was on",
    "speed limit": "Heat held the processor back, in per cent of its speed",
    "governor": "The clock of the processor is governed",
}
_HARMLESS = {
    "power": ("AC Power",),
    "low power mode": ("0",),
    "speed limit": ("100",),
    "governor": ("performance", "schedutil", "ondemand"),
}


def _mac() -> dict[str, str]:
    """`pmset` tells the source of power, low power mode and what heat costs."""
    told = {}
    for line in _pmset("-g", "batt").splitlines():
        if "drawing from" in line:
            told["power"] = line.partition("'")[2].partition("'")[0]
    for line in _pmset("-g").splitlines():
        name, _, value = line.strip().rpartition(" ")
        if name.strip() == "lowpowermode":
            told["low power mode"] = value
    for line in _pmset("-g", "therm").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "CPU_Speed_Limit":
            told["speed limit"] = value.strip()
    return told


def _pmset(*arguments: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        command = ["/usr/bin/pmset", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
        return done.stdout
    return ""


def _linux() -> dict[str, str]:
    """Governor and clock of the first core, and the hottest zone, where there are such files."""
    told = {}
    cpu = Path("/sys/devices/system/cpu/cpu0/cpufreq")
    for name, file in {"governor": "scaling_governor", "clock kHz": "scaling_cur_freq"}.items():
        with suppress(OSError):
            told[name] = (cpu / file).read_text().strip()
    degrees = []
    for zone in Path("/sys/class/thermal").glob("thermal_zone*/temp"):
        with suppress(OSError, ValueError):
            degrees.append(int(zone.read_text()) / 1000)
    if degrees:
        told["hottest zone, degrees"] = f"{max(degrees):.0f}"
    return told
