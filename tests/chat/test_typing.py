"""The conversation at a real terminal, with a model that talks noise quickly."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat.typist import (
    ALT_ENTER,
    CONTROL_C,
    CONTROL_D,
    ENTER,
    UP,
    Typist,
    at_terminal,
)
from tests.tiny_gguf import write_model

pytestmark = pytest.mark.slow
CLOSING = r"tokens?/s .*\n"
PROMPT = r"\n>[ \x08]*$"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shared(model: Path, home: Path) -> Iterator[Typist]:
    with at_terminal(["--model", model, "--max-tokens", "8"], home) as typist:
        typist.expect(r"/help")
        yield typist


@pytest.fixture
def typist(shared: Typist) -> Typist:
    """At an empty prompt of a new conversation."""
    shared.press(CONTROL_C)
    shared.say("/clear")
    shared.expect("A new conversation.")
    shared.expect(PROMPT)
    return shared


def entries(home: Path) -> list[str]:
    """What the history file holds, the oldest first."""
    content = (home / "DATA" / "mtplx" / "chat-history").read_bytes().decode()
    blocks = re.findall(r"\n# [^\n]*\n((?:\+[^\n]*\n)+)", content)
    return ["\n".join(line[1:] for line in block.splitlines()) for block in blocks]


def num_replies(typist: Typist) -> int:
    typist.say("/stats")
    found = re.search(r"Replies +(\d+),", typist.expect(r"Replies +\d+,"))
    assert found is not None
    return int(found[1])


def test_a_long_paste_is_one_message_to_the_byte(typist: Typist, home: Path) -> None:
    """200 pasted lines with a command and quotes inside are sent as they are, on Enter only."""
    lines = [f"{i} " for i in range(200)]
    lines[0], lines[50], lines[60], lines[-1] = "/stats", "/clear", '"""', "end\\"
    text = "\n".join(lines)
    typist.paste(text)
    typist.read_for(1.0)
    assert not re.search(CLOSING, typist.unread())
    typist.press(ENTER)
    typist.expect(r"more lines\r\n[\s\S]*\d tokens?/s")
    assert entries(home)[-1] == text
    assert num_replies(typist) == 1


def test_a_pasted_command_is_a_message(typist: Typist, home: Path) -> None:
    """A single pasted line is no command, also when it is brought back from the history."""
    for keys in (b"\x1b[200~/exit\x1b[201~", UP + UP):
        typist.press(keys)
        typist.read_for(0.3)
        typist.press(ENTER)
        typist.expect(CLOSING)
        typist.expect(PROMPT)
        typist.say("x")
        typist.expect(CLOSING)
        typist.expect(PROMPT)
    assert "//exit" in entries(home)


@pytest.mark.parametrize("keys", [b"one\\\rtwo", b"one" + ALT_ENTER + b"two"])
def test_a_new_line_can_be_typed(typist: Typist, home: Path, keys: bytes) -> None:
    """A backslash before Enter, or Alt-Enter, goes on in a new line of the same message."""
    typist.press(keys + ENTER)
    typist.expect(CLOSING)
    assert entries(home)[-1] == "one\ntwo"


def test_a_message_of_lines_is_no_command(typist: Typist) -> None:
    """A typed message of several lines is sent even if it begins with a command's name."""
    typist.press(b"/exit" + ALT_ENTER + b"is a word" + ENTER)
    typist.expect(CLOSING)
    assert num_replies(typist) == 1


def test_control_c_at_an_empty_prompt_gives_a_hint(typist: Typist) -> None:
    """Ctrl-C without text tells how to leave, as often as it is pressed, and does not leave."""
    for _ in range(3):
        typist.press(CONTROL_C)
        typist.expect("Ctrl-D or /exit leaves")
    assert num_replies(typist) == 0


def test_control_c_drops_the_line(typist: Typist) -> None:
    """Ctrl-C with text neither sends it nor leaves."""
    typist.press("never said")
    typist.press(CONTROL_C)
    typist.read_for(0.3)
    assert num_replies(typist) == 0


def test_an_unknown_command_is_an_error_and_nothing_is_said(typist: Typist) -> None:
    """A mistyped command names the near one."""
    typist.say("/stast")
    typist.expect(r"no command /stast\. Did you mean /stats\?")
    assert num_replies(typist) == 0


def test_what_is_typed_ahead_waits_for_its_turn(typist: Typist) -> None:
    """Lines typed before there is a prompt are not shown in a reply, and are taken in order."""
    typist.press(b"one\rtwo\r/stats\r")
    shown = typist.expect(r"Replies +2,")
    assert shown.index("> one") < shown.index("> two") < shown.index("> /stats")
    assert len(re.findall(CLOSING, shown)) == 2


def test_text_pasted_into_a_reply_waits_for_enter(typist: Typist, home: Path) -> None:
    """What is pasted while a reply runs is one message too, and is not sent by itself."""
    typist.say("one")
    typist.paste("first\n/exit\nlast")
    typist.expect(CLOSING)
    typist.expect("last")
    typist.press(ENTER)
    typist.expect(CLOSING)
    assert entries(home)[-1] == "first\n/exit\nlast"
    assert num_replies(typist) == 2


def test_an_empty_line_is_not_said(typist: Typist) -> None:
    """Enter alone, or after spaces, asks the model nothing."""
    typist.press(b"\r\r   \r")
    assert num_replies(typist) == 0


def test_broken_utf8_does_not_end_the_conversation(typist: Typist) -> None:
    """Bytes that are no text are replaced in the message."""
    typist.press(b"caf\xe9 \xff" + ENTER)
    typist.expect(CLOSING)
    assert num_replies(typist) == 1


@pytest.mark.parametrize(("keys", "code"), [(CONTROL_D, 0), (b"/exit\r", 0), (b"x\r\x04", 0)])
def test_leaving_gives_the_terminal_back(
    model: Path, tmp_path: Path, keys: bytes, code: int
) -> None:
    """Ctrl-D and /exit end with code 0, and the terminal is as it was."""
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path) as typist:
        before = typist.modes()
        typist.expect("/help")
        typist.press(keys)
        assert typist.exit_code() == code
        typist.read_for(0.3)
        assert typist.modes() == before
        assert typist.output.rindex(b"\x1b[?2004l") > typist.output.rindex(b"\x1b[?2004h")


@pytest.mark.parametrize(
    ("death", "moment"),
    [
        (signal.SIGKILL, b""),
        (signal.SIGKILL, b"half a line"),
        (signal.SIGKILL, b"x\r"),
        (signal.SIGTERM, b"x\r"),
    ],
)
def test_a_killed_process_leaves_terminal_and_history_intact(
    model: Path, tmp_path: Path, death: signal.Signals, moment: bytes
) -> None:
    """After kill -9 at the prompt or in a reply the terminal is as before and nothing is lost."""
    endless = ["--model", model, "--max-tokens", "100000", "--logit-bias", "1=-inf"]
    with at_terminal(endless, tmp_path) as typist:
        before = typist.modes()
        typist.expect("/help")
        typist.say("/stats")
        typist.expect("Caches.*\n")
        assert typist.modes() != before
        typist.press(moment)
        typist.read_for(0.5)
        typist.signal(death)
        assert typist.exit_code() == -death
        deadline = time.monotonic() + 5
        while typist.modes() != before and time.monotonic() < deadline:
            typist.read_for(0.05)
        assert typist.modes() == before
        typist.read_for(0.3)
        assert typist.output.rindex(b"\x1b[?2004l") > typist.output.rindex(b"\x1b[?2004h")
    assert entries(tmp_path) == ["/stats", "x"] if moment == b"x\r" else ["/stats"]
    with at_terminal(endless, tmp_path) as typist:
        typist.expect("/help")
        typist.press(UP)
        typist.expect(r"\n>[ \x08]*" + entries(tmp_path)[-1])


def test_no_color_means_no_paint(model: Path, tmp_path: Path) -> None:
    """With NO_COLOR set, nothing on the screen is painted."""
    with at_terminal(["--model", model], tmp_path, NO_COLOR="1") as typist:
        typist.say("Hello")
        typist.expect(CLOSING)
        painted = re.findall(rb"\x1b\[([0-9;]*)m", typist.output)
        assert set(painted) <= {b"", b"0"}


def test_a_dumb_terminal_gets_plain_lines(model: Path, tmp_path: Path) -> None:
    """With TERM=dumb there is no escape sequence at all, and the keys that leave still do."""
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path, TERM="dumb") as typist:
        typist.expect("/help")
        typist.press(b"Hello\n")
        typist.expect(CLOSING)
        typist.expect(PROMPT)
        typist.press(CONTROL_C)
        typist.expect("Ctrl-D or /exit leaves")
        typist.press(CONTROL_D)
        assert typist.exit_code() == 0
        assert b"\x1b" not in typist.output


def test_a_home_that_cannot_be_written_only_costs_the_history(model: Path, tmp_path: Path) -> None:
    """Where no history can be kept, one line says so and the conversation goes on."""
    (tmp_path / "DATA").write_text("in the way")
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path) as typist:
        typist.expect("not remembered")
        typist.say("Hello")
        typist.expect(CLOSING)


def test_stop_and_go_on_keeps_the_conversation(model: Path, tmp_path: Path) -> None:
    """Ctrl-Z at the prompt gives the shell its terminal; going on finds everything in place."""
    with at_terminal(["--model", model, "--max-tokens", "8"], tmp_path) as typist:
        typist.say("Hello")
        typist.expect(CLOSING)
        typist.expect(PROMPT)
        before = typist.modes()
        typist.signal(signal.SIGSTOP)
        typist.signal(signal.SIGCONT)
        typist.read_for(0.3)
        assert typist.modes() == before
        assert num_replies(typist) == 1
