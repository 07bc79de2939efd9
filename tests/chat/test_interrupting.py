"""Stopping a real model's replies at a real terminal."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat.typist import CONTROL_C, CONTROL_D, ENTER, Typist, at_terminal

pytestmark = pytest.mark.slow
PROMPT = r"\n>[ \x08]*$"
STORY = "Write a long story about a dragon and a castle."


@pytest.fixture(scope="module")
def shared(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    arguments = ["--model", smollm2_path, "--temp", "0", "--max-tokens", "400"]
    with at_terminal(arguments, tmp_path_factory.mktemp("home")) as typist:
        typist.expect("/help")
        yield typist


@pytest.fixture
def typist(shared: Typist) -> Typist:
    """At an empty prompt of a new conversation."""
    shared.say("/clear")
    shared.expect("A new conversation.")
    shared.expect(PROMPT)
    return shared


@pytest.mark.parametrize("is_key", [True, False])
def test_a_stopped_reply_gives_the_prompt_back_at_once(typist: Typist, is_key: bool) -> None:
    """Ctrl-C or SIGINT in a reply brings the prompt in under a second, and the talk goes on."""
    typist.say(STORY)
    shown = typist.expect(r"castle\.\s+[\s\S]*?(\w+[ ,.\r\n]+){10}")
    started_s = time.monotonic()
    if is_key:
        typist.press(CONTROL_C)
    else:
        typist.signal(signal.SIGINT)
    shown += typist.expect(PROMPT, timeout_s=10)
    assert time.monotonic() - started_s < 1.0
    assert "stopped" in shown
    typist.say("Now say hello.")
    typist.expect(r"hello\.\s+\w+")
    typist.press(CONTROL_C)
    typist.expect(PROMPT)
    typist.say("/stats")
    assert re.search(r"Replies +2,", typist.expect(r"Caches"))


def test_a_reply_goes_on_in_the_width_of_a_resized_terminal(typist: Typist) -> None:
    """After the terminal became narrower, the lines of the same reply are as narrow."""
    typist.say(STORY)
    typist.expect(r"castle\.\s+[\s\S]*?(\w+[ ,.\r\n]+){20}")
    typist.resize(40, 24)
    typist.read_for(0.2)  # what was on its way is as wide as before
    wide = len(typist.unread())
    typist.expect(rf"[\s\S]{{{wide}}}[^\n]*\n")
    lines = typist.expect(r"([^\n]*\n){6}").splitlines()
    typist.press(CONTROL_C)
    typist.expect("tokens?/s")
    typist.resize(80, 24)
    assert all(len(line) < 40 for line in lines)
    assert max(map(len, lines)) > 30


def test_reading_a_long_prompt_can_be_stopped_and_left(smollm2_path: Path, tmp_path: Path) -> None:
    """Ctrl-C while a long message is read brings the prompt at once, and Ctrl-D leaves at once."""
    with at_terminal(["--model", smollm2_path], tmp_path) as typist:
        typist.expect("/help")
        typist.expect(PROMPT)
        typist.paste("\n".join(f"This is line {i} of a long text." for i in range(300)))
        typist.press(ENTER)
        typist.expect("reading")
        started_s = time.monotonic()
        typist.press(CONTROL_C)
        typist.expect("stopped before the first word")
        typist.expect(PROMPT)
        assert time.monotonic() - started_s < 1.0
        typist.press(CONTROL_D)
        assert typist.exit_code() == 0
        assert time.monotonic() - started_s < 5.0


def test_control_c_while_the_model_is_loaded_leaves(smollm2_path: Path, tmp_path: Path) -> None:
    """Ctrl-C before there is a prompt ends the program with code 130, the terminal as before."""
    with at_terminal(["--model", smollm2_path], tmp_path) as typist:
        before = typist.modes()
        while typist.modes() == before:
            typist.read_for(0.01)
        typist.press(CONTROL_C)
        assert typist.exit_code() == 130
        typist.read_for(0.3)
        assert typist.modes() == before
        assert "Traceback" not in typist.unread()
