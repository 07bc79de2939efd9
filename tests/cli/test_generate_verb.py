import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.text.safe import printable
from tests.cli.conftest import Run

ASK = ("generate", "--seed", "3", "--temp", "1", "--max-tokens", "40")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mtplx", *map(str, arguments)]


def test_the_text_is_exactly_the_text(mtplx: Run, tiny: Path, tiny_head: Path) -> None:
    """Where no terminal shows it, standard output is the text of --json, and nothing else."""
    model = ("--model", tiny, "--head", tiny_head)
    plain = mtplx(*ASK, *model, "hello")
    whole = mtplx(*ASK, *model, "hello", "--json")
    result = json.loads(whole.out)
    assert plain.out.decode() == result["text"]
    assert whole.out.count(b"\n") == 1
    assert (plain.code, whole.code) == (0, 0)
    assert result["num_tokens"] == len(result["token_ids"]) <= 40
    assert result["seed"] == 3


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["one"], b"", "one"),
        ([], b"two\r\n", "two"),
        (["-"], "\ufefftw\u00f6\n\n".encode(), "tw\u00f6"),
        (["Translate:"], b"three\nlines\n", "Translate:\n\nthree\nlines"),
    ],
)
def test_where_the_prompt_comes_from(
    mtplx: Run, tiny: Path, arguments: list[str], stdin: bytes, prompt: str
) -> None:
    """An argument, standard input, or both in that order, without line ends at the end."""
    asked = (*ASK, "--model", tiny, "--json")
    found = json.loads(mtplx(*asked, *arguments, stdin=stdin).out)
    expected = json.loads(mtplx(*asked, prompt).out)
    assert found["num_prompt_tokens"] == expected["num_prompt_tokens"]
    assert found["token_ids"] == expected["token_ids"]


def test_raw_text_is_continued_as_it_is(mtplx: Run, tiny: Path) -> None:
    """With --raw a line end at the end of standard input belongs to the prompt."""
    asked = ("generate", "--raw", "--max-tokens", "1", "--model", tiny, "--json")
    counts = [
        json.loads(mtplx(*asked, stdin=stdin).out)["num_prompt_tokens"]
        for stdin in (b"def f(x):", b"def f(x):\n")
    ]
    assert counts == [9, 10]


def test_options_reach_the_model(mtplx: Run, tiny: Path) -> None:
    """A system prompt, a stop string, a bias and the other options change what they should."""
    asked = ("generate", "--model", tiny, "--json", "--temp", "0", "hello")
    plain = json.loads(mtplx(*asked, "--max-tokens", "12").out)
    told = json.loads(mtplx(*asked, "--max-tokens", "1", "--system", "Be kind.").out)
    assert told["num_prompt_tokens"] > plain["num_prompt_tokens"]
    first = plain["token_ids"][0]
    biased = json.loads(mtplx(*asked, "--max-tokens", "1", f"--logit-bias={first}=-inf").out)
    assert biased["token_ids"][0] != first
    stop = plain["text"][4:6]
    stopped = json.loads(mtplx(*asked, "--stop", stop).out)
    assert (stopped["finish_reason"], stopped["text"]) == ("stop", plain["text"].split(stop)[0])


def test_figures_are_told_when_asked_for(mtplx: Run, tiny: Path, tiny_head: Path) -> None:
    """--stats puts one line on standard error, and without it there is none in a pipe."""
    asked = (*ASK, "--model", tiny, "--head", tiny_head, "hello")
    told = mtplx(*asked, "--stats")
    assert mtplx(*asked).err == ""
    assert told.err.count("\n") == 1
    assert " tokens at " in told.err
    assert "tokens per round" in told.err


def test_a_terminal_is_never_steered(home: dict[str, str], tiny: Path) -> None:
    """On a terminal, control characters of the text are shown, not sent."""
    asked = (*ASK, "--model", tiny, "--no-stats", "hello")
    text = subprocess.run(
        command(*asked), env=home, stdin=subprocess.DEVNULL, capture_output=True, check=True
    ).stdout
    watching, shown_to = pty.openpty()
    with subprocess.Popen(
        command(*asked),
        env=home,
        stdin=subprocess.DEVNULL,
        stdout=shown_to,
        stderr=subprocess.DEVNULL,
    ):
        os.close(shown_to)
        shown = b""
        while chunk := read_or_end(watching):
            shown += chunk
    assert printable(text.decode()) != text.decode()
    assert shown.decode().replace("\r\n", "\n") == printable(text.decode()) + "\n"


def test_replies_come_one_by_one(mtplx: Run, tiny: Path) -> None:
    """With --n each reply is a line of JSON with the seed that gives it again alone, or a text that
    ends with a line end."""
    asked = (*ASK, "--model", tiny, "hello")
    lines = mtplx(*asked, "--n", "3", "--json").out.splitlines()
    first, second, _ = results = [json.loads(line) for line in lines]
    assert first["seed"] == 3
    alone = mtplx(*ASK, "--seed", second["seed"], "--model", tiny, "hello", "--json")
    assert json.loads(alone.out)["token_ids"] == second["token_ids"] != first["token_ids"]
    texts = mtplx(*asked, "--n", "3")
    assert texts.out.decode() == "".join(result["text"] + "\n" for result in results)
    assert "Reply 2 of 3:" in texts.err


def test_log_probabilities_are_in_the_json(mtplx: Run, tiny: Path) -> None:
    """One for each token with the likeliest ones there, and none without being asked."""
    asked = (*ASK, "--model", tiny, "hello", "--json")
    result = json.loads(mtplx(*asked, "--logprobs", "2", "--logprobs-of", "sampling").out)
    assert [token["token_id"] for token in result["logprobs"]] == result["token_ids"]
    for token in result["logprobs"]:
        best = [other["logprob"] for other in token["top"]]
        assert token["logprob"] <= best[0] <= 0
        assert best == sorted(best, reverse=True)
        assert len(best) == 2
    assert "logprobs" not in json.loads(mtplx(*asked).out)


def read_or_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""


def start(home: dict[str, str], tiny: Path) -> subprocess.Popen[bytes]:
    """A reply that takes a while, with a first piece of it read."""
    forever = ("--temp", "1", "--seed", "1", "--max-tokens", "900", "--logit-bias", "1=-inf")
    process = subprocess.Popen(
        command("generate", "--model", tiny, *forever, "hello"),
        env=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 4096)
    return process


def test_text_is_written_as_it_comes(home: dict[str, str], tiny: Path) -> None:
    """The first piece is in the pipe while the rest is still being made."""
    with start(home, tiny) as process:
        assert process.poll() is None
        out, _ = process.communicate()
    assert len(out) > 0


def test_ctrl_c_ends_it_without_a_traceback(home: dict[str, str], tiny: Path) -> None:
    """An interrupt ends with 130 and leaves what was written."""
    with start(home, tiny) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == b""


def test_a_reader_that_goes_is_no_error(home: dict[str, str], tiny: Path) -> None:
    """A closed pipe ends it in silence, as `head` expects."""
    with start(home, tiny) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait()
    assert process.returncode == 141
    assert err == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line(home: dict[str, str], tiny: Path) -> None:
    """A full disk is told in one line."""
    with Path("/dev/full").open("wb") as full:
        asked = command(*ASK, "--model", tiny, "hello")
        done = subprocess.run(
            asked,
            env=home,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"mtplx: Cannot write to standard output: No space left")
    assert done.stderr.count(b"\n") == 1


def test_it_says_that_it_waits_for_standard_input(home: dict[str, str], tiny: Path) -> None:
    """With an argument and a pipe that stays open, one line tells what is waited for."""
    asked = command(*ASK, "--model", tiny, "hello")
    with subprocess.Popen(
        asked, env=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        out, _ = process.communicate(b"")
    assert b"Waiting for standard input" in line
    assert len(out) > 0
    assert process.returncode == 0


def test_the_first_word_comes_soon(home: dict[str, str], tiny: Path) -> None:
    """What is neither the model's nor MLX's takes little: start to end of one token in CPU time."""
    asked = command("generate", "--model", tiny, "--max-tokens", "1", "hello")
    taken = []
    for _ in range(3):
        before = os.times()
        subprocess.run(asked, env=home, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        after = os.times()
        spent = after.children_user + after.children_system
        taken.append(spent - before.children_user - before.children_system)
    assert min(taken) < 1.5
