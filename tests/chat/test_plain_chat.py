"""The conversation where standard input is no terminal: each line is a message."""

import json
import os
import re
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
        cwd=home,
        timeout=120,
        check=False,
    )


def without_figures(output: bytes) -> list[bytes]:
    """What was said, without lines about it."""
    known = (b"tiny.gguf", b"No MTP", b"Kept as", b"User", b"Assistant", b"Prompt", b"Left")
    lines = (line for line in output.split(b"\n") if line and b"tokens/s" not in line)
    return [line for line in lines if not line.startswith(known)]


def test_each_line_is_answered_and_the_end_leaves(model: Path, tmp_path: Path) -> None:
    """Two lines have two replies, commands work, and the end of input is exit code 0."""
    done = chat(model, tmp_path, b"Hello\r\n\n//And?\n/stats")
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.count(b"tokens/s") == 3
    assert not (tmp_path / "mtplx" / "conversations").exists()
    assert b"Replies    2," in done.stdout
    assert b"\x1b" not in done.stdout


def test_lines_between_quotes_are_one_message(model: Path, tmp_path: Path) -> None:
    """Three quotes begin and end a message of lines, in which nothing is a command."""
    done = chat(model, tmp_path, b'"""\n/exit\n//two\n"""\n/export json out.json\n"""open\n')
    assert done.returncode == 2
    exported = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert exported["messages"][0]["content"] == "/exit\n//two"
    assert b"line 6 of standard input are not closed" in done.stderr


def test_a_script_goes_on_with_a_conversation(model: Path, tmp_path: Path) -> None:
    """--save keeps a script's conversation, and --resume gives the next script all of it."""
    at_zero = ("--temp", "0")
    whole = chat(model, tmp_path, b"One\nTwo\n", "--no-save", *at_zero)
    first = chat(model, tmp_path, b"One\n/save talk\n", "--save", *at_zero)
    second = chat(model, tmp_path, b"Two\n/tokens\n", "--resume", "talk")
    assert (whole.returncode, first.returncode, second.returncode) == (0, 0, 0)
    assert b"talk.jsonl" in first.stdout
    assert re.search(rb"User +6 in 2", second.stdout)
    replies = [without_figures(done.stdout) for done in (whole, first, second)]
    assert replies[0] == replies[1] + replies[2]


def test_an_unknown_conversation_is_an_error_before_anything(model: Path, tmp_path: Path) -> None:
    """--resume without any conversation, or with a prompt in place of a name, ends at once."""
    assert chat(model, tmp_path, b"", "--resume").stderr.startswith(b"mtplx: There is no convers")
    mistaken = chat(model, tmp_path, b"", "What is this?")
    assert mistaken.returncode == 2
    assert b"mtplx generate" in mistaken.stderr


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_where_nobody_types(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """While a line from a pipe is waited for, a signal ends the program without a word."""
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
        program.send_signal(number)
        assert program.wait(timeout=60) == code
        assert program.stderr.read() == b""
