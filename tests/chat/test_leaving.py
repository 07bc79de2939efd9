"""How a conversation ends, in good order and otherwise, and how it goes on."""

import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.chat.typist import CONTROL_D, ENTER, UP, Typist, at_terminal
from tests.tiny_gguf import write_model

pytestmark = pytest.mark.slow
CLOSING = r"tokens?/s .*\n"
ENDLESS = ["--max-tokens", "100000", "--logit-bias", "1=-inf", "--temp", "0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # No machine is so fast that it fills this context before a test has looked.
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context_length=65_536)


def kept(home: Path) -> Path:
    """The only conversation's file."""
    (file,) = (home / "DATA" / "mtplx" / "conversations").glob("*.jsonl")
    return file


def records(home: Path) -> list[dict[str, str]]:
    """What the only conversation's file holds; nothing before there is one."""
    files = list((home / "DATA" / "mtplx" / "conversations").glob("*.jsonl"))
    lines = files[0].read_text("utf-8").splitlines() if files else []
    return [json.loads(line) for line in lines]


def wait_for_piece(typist: Typist, home: Path) -> None:
    """Until a part of a reply has been kept."""
    deadline = time.monotonic() + 30
    while not any(record["type"] == "piece" for record in records(home)):
        typist.read_for(0.1)
        assert time.monotonic() < deadline


def is_open(file: Path) -> bool:
    """Whether a process has it open as its conversation."""
    handle = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def test_leaving_gives_the_terminal_back(model: Path, tmp_path: Path) -> None:
    """Ctrl-D, while the model is loaded or after, and /exit end with 0, the terminal as before."""
    for keys in (CONTROL_D, b"/exit\r"):
        with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path) as typist:
            before = typist.modes()
            typist.expect("/help")
            if keys == b"/exit\r":
                typist.expect("MTP")
            typist.at_prompt()
            typist.press(keys)
            assert typist.exit_code() == 0
            typist.read_for(0.3)
            assert typist.modes() == before
            assert typist.output.rindex(b"\x1b[?2004l") > typist.output.rindex(b"\x1b[?2004h")
    assert not (tmp_path / "DATA" / "mtplx" / "conversations").exists()


@pytest.mark.parametrize(("death", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_killed_process_loses_nothing(
    model: Path, tmp_path: Path, death: signal.Signals, code: int
) -> None:
    """Killed in a reply, the terminal is as before, and the talk goes on with what was said."""
    with at_terminal(["--model", model, *ENDLESS], tmp_path) as typist:
        before = typist.modes()
        typist.expect("MTP")
        typist.say("/set penalty_window 99")
        typist.expect("penalty_window 99")
        typist.say("Hello")
        typist.expect("/65,536")
        wait_for_piece(typist, tmp_path)
        assert typist.modes() != before
        typist.signal(death)
        assert typist.exit_code() == code
        deadline = time.monotonic() + 5
        while typist.modes() != before and time.monotonic() < deadline:
            typist.read_for(0.05)
        assert typist.modes() == before
        typist.read_for(0.3)
        assert typist.output.rindex(b"\x1b[?2004l") > typist.output.rindex(b"\x1b[?2004h")
        assert typist.screen.margins is None
    if death is signal.SIGTERM:
        assert records(tmp_path)[-1]["type"] == "assistant"
    with at_terminal(["--resume", "--max-tokens", "8"], tmp_path) as typist:
        typist.expect("MTP")
        if death is signal.SIGKILL:
            typist.expect("cut off there")
        typist.expect("> Hello")
        typist.at_prompt()
        typist.say("/set penalty_window")
        typist.expect("penalty_window 99")
        typist.say("/set max_tokens")
        typist.expect("max_tokens 8")
        typist.press(UP + UP + UP + ENTER)
        typist.expect(CLOSING)
        typist.at_prompt()
    messages = [r for r in records(tmp_path) if r["type"] in ("user", "assistant")]
    assert [message["type"] for message in messages] == ["user", "assistant"] * 2
    assert messages[1]["text"]
    assert messages[2]["text"] == "Hello"


@pytest.mark.parametrize("in_a_reply", [True, False])
def test_a_closed_terminal_saves_the_conversation(
    model: Path, tmp_path: Path, in_a_reply: bool
) -> None:
    """When the terminal goes, in a reply or at the prompt, all is kept and the process ends."""
    arguments = ENDLESS if in_a_reply else ["--max-tokens", "8"]
    with at_terminal(["--model", model, *arguments], tmp_path) as typist:
        typist.expect("MTP")
        typist.say("Hello")
        if in_a_reply:
            wait_for_piece(typist, tmp_path)
        else:
            typist.expect(CLOSING)
            typist.at_prompt()
        typist.hang_up()
        deadline = time.monotonic() + 20
        while is_open(kept(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_open(kept(tmp_path))
        last = records(tmp_path)[-1]
    assert last["type"] == "assistant"
    pieces = [record["text"] for record in records(tmp_path) if record["type"] == "piece"]
    assert last["text"].startswith("".join(pieces))


def test_a_damaged_conversation_is_an_error_before_anything(model: Path, tmp_path: Path) -> None:
    """--resume with a file that cannot be understood ends with 1, names it, and keeps it."""
    folder = tmp_path / "DATA" / "mtplx" / "conversations"
    folder.mkdir(parents=True)
    (folder / "mine.jsonl").write_text('{"type": "conversation"\n{}\n')
    with at_terminal(["--resume", "mine", "--model", model], tmp_path) as typist:
        assert typist.exit_code() == 1
        typist.expect(r"mine\.jsonl, line 1: this is no conversation")
    assert (folder / "mine.jsonl").read_text() == '{"type": "conversation"\n{}\n'


def test_a_dumb_terminal_gets_plain_lines(model: Path, tmp_path: Path) -> None:
    """With TERM=dumb there is no escape sequence at all, and the keys that leave still do."""
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path, TERM="dumb") as typist:
        typist.expect("/help")
        typist.press(b"Hello\n")
        typist.expect(CLOSING)
        typist.at_prompt()
        typist.press(b"\x03")
        typist.expect("Ctrl-D or /exit leaves")
        typist.press(CONTROL_D)
        assert typist.exit_code() == 0
        assert b"\x1b" not in typist.output


def test_a_home_that_cannot_be_written_only_costs_what_is_kept(model: Path, tmp_path: Path) -> None:
    """Where nothing can be kept, lines say so; what is said before the model is there waits."""
    (tmp_path / "DATA").write_text("in the way")
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path) as typist:
        typist.expect("/help")
        typist.say("Hello")
        typist.expect("MTP")
        typist.expect(CLOSING)
        typist.expect("not remembered")
        typist.expect("not kept")
        typist.at_prompt()
        typist.say("Hello")
        typist.expect(CLOSING)


def test_a_model_that_is_not_there_ends_with_the_error(tmp_path: Path) -> None:
    """The prompt that came before the model was looked for goes, and the error is told."""
    with at_terminal(["--model", "no/such-model.gguf"], tmp_path) as typist:
        before = typist.modes()
        assert typist.exit_code() == 1
        typist.read_for(0.3)
        assert "no/such-model.gguf" in typist.unread()
        assert "Traceback" not in typist.unread()
        assert typist.modes() == before
