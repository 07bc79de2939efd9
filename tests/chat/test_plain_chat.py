"""The conversation where standard input is no terminal: each line is a message."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_gguf import write_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "XDG_DATA_HOME": str(home), "PYTHONPATH": str(ROOT)}


def chat(
    model: Path, home: Path, stdin: bytes, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    """A whole conversation in a pipe, with replies of eight tokens."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mtplx",
            "chat",
            "--model",
            str(model),
            "--max-tokens",
            "8",
            *arguments,
        ],
        input=stdin,
        capture_output=True,
        env=environment(home),
        timeout=120,
        check=False,
    )


def test_each_line_is_answered_and_the_end_leaves(model: Path, tmp_path: Path) -> None:
    """Two lines have two replies, commands work, and the end of input is exit code 0."""
    done = chat(model, tmp_path, b"Hello\r\n\n//And?\n/stats")
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.count(b"tokens/s") == 3
    assert b"Replies    2," in done.stdout
    assert b"\x1b" not in done.stdout


def test_nothing_to_read_is_nothing_to_do(model: Path, tmp_path: Path) -> None:
    """Empty input ends at once with code 0."""
    done = chat(model, tmp_path, b"")
    assert (done.returncode, done.stderr) == (0, b"")


def test_errors_are_told_and_the_rest_is_answered(model: Path, tmp_path: Path) -> None:
    """A wrong command and a message beyond the context fail by name; the exit code tells."""
    done = chat(model, tmp_path, b"/hlep\n" + b"x" * 5000 + b"\nHello\n")
    assert done.returncode == 2
    first, second = done.stderr.decode().splitlines()
    assert "Did you mean /help?" in first
    assert "The prompt has" in second
    assert done.stdout.count(b"tokens/s") == 1


def test_a_line_that_is_no_text_is_one_clear_error(model: Path, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 end with code 2, naming the line and the byte."""
    done = chat(model, tmp_path, b"Hello\ncaf\xe9\n")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"Line 2" in done.stderr
    assert b"0xe9" in done.stderr


def test_a_depth_without_a_head_is_refused_before_anything_is_said(
    model: Path, tmp_path: Path
) -> None:
    """An explicit depth that cannot be drafted ends with code 2 and the reason."""
    done = chat(model, tmp_path, b"Hello\n", "--depth", "2")
    assert done.returncode == 2
    assert b"no MTP head" in done.stderr
    assert b"tokens/s" not in done.stdout


def test_control_c_leaves_where_nobody_types(model: Path, tmp_path: Path) -> None:
    """While a line from a pipe is waited for, SIGINT ends the program with code 130."""
    with subprocess.Popen(
        [sys.executable, "-m", "mtplx", "chat", "--model", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert b"tiny.gguf" in program.stdout.readline()
        program.stdout.readline()
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=60) == 130
        assert program.stderr.read() == b""
