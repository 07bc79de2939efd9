import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.cli.checks import (
    Finding,
    Host,
    compiler_finding,
    platform_finding,
    python_finding,
)
from mtplx.cli.doctor import doctor_text
from tests.cli.conftest import Run

MAC = Host("Darwin", "arm64", (15, 1), (3, 12))
LINUX = Host("Linux", "x86_64", (2, 36), (3, 12), libc="glibc")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (replace(MAC, machine="x86_64", translated=True), "arm64 Python"),
        (replace(MAC, machine="x86_64"), "Apple silicon"),
        (replace(MAC, machine="i386"), "Apple silicon"),
        (replace(MAC, system_version=(13, 6)), "macOS 14"),
        (replace(LINUX, machine="riscv64"), "x86_64 and aarch64"),
        (replace(LINUX, system_version=(2, 31)), "glibc 2.35"),
        (replace(LINUX, libc="", system_version=()), "glibc 2.35"),
        (replace(LINUX, system="Windows", machine="AMD64"), "WSL"),
    ],
)
def test_machines_without_mlx_are_told_why(host: Host, told: str) -> None:
    """What MLX is not built for is named, with what to use instead."""
    finding = platform_finding(host)
    assert finding.broken
    assert told in (finding.remedy or "")


@pytest.mark.parametrize("host", [MAC, LINUX, replace(LINUX, machine="aarch64")])
def test_machines_with_mlx_are_fine(host: Host) -> None:
    """No word of advice where all is well."""
    assert platform_finding(host).remedy is None


def test_an_old_python_is_named() -> None:
    """Python before 3.11 has to be replaced."""
    assert python_finding(replace(MAC, python_version=(3, 9))).broken
    assert not python_finding(replace(MAC, python_version=(3, 11))).broken


def test_a_missing_compiler_is_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without g++ things run on Linux, only slower; a Mac needs none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = compiler_finding(LINUX)
    assert finding is not None
    assert finding.remedy is not None
    assert not finding.broken
    assert compiler_finding(MAC) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a folder away")
def test_another_users_compiled_code_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MLX would fail to write there, and run what the other user put there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    place = tmp_path / "mlx"
    place.mkdir()
    fine = compiler_finding(LINUX)
    os.chown(place, 65534, 65534)
    found = compiler_finding(LINUX)
    assert fine is not None
    assert found is not None
    assert not fine.broken
    assert found.broken


def test_the_verdict_counts_what_is_to_be_done() -> None:
    """What must be fixed is told apart from what could be better."""
    fine = Finding("a", "fine")
    advice = Finding("b", "slow", "Speed it up.")
    broken = Finding("c", "gone", "Bring it back.", broken=True)
    assert doctor_text([fine]).endswith("All is well.\n")
    assert "1 could be better" in doctor_text([fine, advice])
    told = doctor_text([fine, advice, broken])
    assert told.endswith("1 to fix before MTPLX can run (marked fix).\n")
    assert "-> Bring it back." in told


def test_json_says_the_same(mtplx: Run) -> None:
    """--json is one object with every finding, and `ok` is the exit code."""
    ran = mtplx("doctor", "--json")
    whole = json.loads(ran.out)
    assert whole["ok"] == (ran.code == 0)
    subjects = [finding["subject"] for finding in whole["findings"]]
    assert {"platform", "Python", "mlx", "mlx-lm", "BLAS", "cache", "model", "disk"} <= {*subjects}


def test_it_looks_and_touches_nothing(mtplx: Run, home: dict[str, str]) -> None:
    """No folder is made by looking for it."""
    mtplx("doctor")
    assert not Path(home["XDG_CACHE_HOME"]).exists()
    assert not Path(home["XDG_DATA_HOME"]).exists()


def test_a_damaged_model_has_to_be_removed(mtplx: Run, home: dict[str, str]) -> None:
    """A file of the right size and the wrong content is found out."""
    from mtplx.loading.catalogue import SMOLLM2

    path = Path(home["XDG_CACHE_HOME"]) / "mtplx" / "models" / SMOLLM2.file_name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    os.truncate(path, SMOLLM2.num_bytes)
    ran = mtplx("doctor")
    assert ran.code == 1
    assert f"rm '{path}'".encode() in ran.out


def test_a_file_in_the_place_of_a_folder_is_found(mtplx: Run, home: dict[str, str]) -> None:
    """A cache that can never be made is something to fix."""
    Path(home["XDG_CACHE_HOME"]).write_text("not a folder")
    ran = mtplx("doctor")
    assert ran.code == 1
    assert b"is not a folder" in ran.out
