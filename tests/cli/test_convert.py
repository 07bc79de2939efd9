"""`mtplx convert` as it is typed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_it_tells_what_was_made(mtplx: Run, hybrid: Path, tmp_path: Path) -> None:
    """Packings and what they lose, trunk and head apart, and how much smaller it is."""
    ran = mtplx("convert", hybrid, tmp_path / "out", "--bits", "4", "--group-size", "32")
    shown = ran.out.decode()
    assert ran.code == 0, ran.err
    assert "compared with the original" in shown
    for words in ("4 bits in groups of 32, off by ", "8 bits in groups of 32, off by 0."):
        assert words in shown
    assert "Qwen 3.5 / 3.6 / 3.8, 1 module in the head" in shown
    told = mtplx("inspect", "--no-load", tmp_path / "out").out.decode()
    assert "1 module" in told
    assert "in a file of its own, mtp.safetensors" in told
    assert "after its final norm" in told


def test_without_a_head_it_says_so_first(mtplx: Run, hybrid: Path, tmp_path: Path) -> None:
    """Before the work, and in what was made."""
    ran = mtplx("convert", hybrid.parent / "llama", tmp_path / "out")
    assert ran.code == 0
    assert ran.err.startswith("There will be no MTP head: ")
    assert b"none: " in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--bits", "7"], 2, "7 bits"),
        (["--dtype", "int8"], 2, "int8"),
        (["--shard-size", "0"], 2, "shard-size"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    mtplx: Run, hybrid: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    """In a line that names the value, and nothing is written."""
    ran = mtplx("convert", hybrid, tmp_path / "out", *arguments)
    assert (ran.code, ran.out) == (code, b"")
    assert told in ran.err
    assert not list(tmp_path.glob("out*"))


def test_mistaken_places_are_told_in_a_line(mtplx: Run, hybrid: Path, tmp_path: Path) -> None:
    """A GGUF file, a name that leads nowhere, the original itself, a place without rights."""
    from tests.tiny_gguf import write_model

    gguf = write_model(tmp_path / "tiny.gguf")
    for source, out, told in (
        (gguf, tmp_path / "out", "loads as it is"),
        (tmp_path / "absent", tmp_path / "out", "no file or folder"),
        (hybrid, hybrid, "is or holds the source"),
        (hybrid, Path("/proc/nowhere"), "Cannot write /proc/nowhere"),
    ):
        ran = mtplx("convert", source, out)
        assert ran.code in (1, 2)
        assert told in ran.err
        assert ran.err.count("\n") == 1


def test_ctrl_c_keeps_what_is_finished(
    home: dict[str, str], mtplx: Run, hybrid: Path, tmp_path: Path
) -> None:
    """It ends at once with its exit code, and the same command goes on."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "mtplx", "convert", str(hybrid), str(out), "--bits", "8"]
    running = subprocess.Popen(command, env=home, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("writing")
    running.send_signal(signal.SIGINT)
    _, rest = running.communicate()
    assert "Traceback" not in rest
    assert running.returncode in (0, 130)  # it may have been as good as done
    assert out.exists() == (running.returncode == 0)
    if not out.exists():
        assert mtplx(*command[3:]).code == 0
    assert "mtp.safetensors" in os.listdir(out)
