"""Stopping replies at a real terminal, and what the terminal does to them meanwhile."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat.typist import CONTROL_C, CONTROL_D, ENTER, Typist, at_terminal
from tests.tiny_gguf import TOKENS, write_model

pytestmark = pytest.mark.slow
# Of two letters and a space, as the vocabulary spells it, all equally likely at this temperature.
LETTERS, TEMPERATURE = ("c", "d", "\u0120"), "1e4"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    """A model that talks in words of two letters, as long as the context allows."""
    home = tmp_path_factory.mktemp("home")
    # No machine is so fast that it fills this context before a test has looked.
    model = write_model(home / "tiny.gguf", context_length=65_536)
    biases = [f"--logit-bias={TOKENS.index(letter)}=1e6" for letter in LETTERS]
    arguments = ["--model", model, "--max-tokens", "60000", "--temp", TEMPERATURE, *biases]
    with at_terminal([*arguments, "--top-p", "1", "--seed", "3"], home) as typist:
        typist.expect("MTP")
        typist.at_prompt()
        yield typist


@pytest.fixture
def typist(shared: Typist) -> Typist:
    """At an empty prompt of a new conversation, on an empty screen."""
    shared.say("/clear")
    shared.expect("A new conversation.")
    shared.at_prompt()
    shared.press(b"\x0c")
    while shared.screen.cursor.y > 0:
        shared.read_for(0.05)
    return shared


def words(typist: Typist) -> list[str]:
    """The lines of words on the screen."""
    return [line for line in typist.shown() if re.fullmatch(r"[cd ]*[cd]+[cd ]*", line)]


def wait_for_lines(typist: Typist, number: int) -> None:
    deadline = time.monotonic() + 30
    while len(words(typist)) < number:
        typist.read_for(0.05)
        assert time.monotonic() < deadline, typist.shown()


@pytest.mark.parametrize("is_key", [True, False])
def test_a_stopped_reply_gives_the_prompt_back_at_once(typist: Typist, is_key: bool) -> None:
    """Ctrl-C or SIGINT in a reply brings the prompt in under a second, and the talk goes on."""
    typist.say("Hello")
    wait_for_lines(typist, 2)
    started_s = time.monotonic()
    if is_key:
        typist.press(CONTROL_C)
    else:
        typist.signal(signal.SIGINT)
    typist.expect("stopped")
    typist.at_prompt()
    assert time.monotonic() - started_s < 1.0
    stopped = words(typist)
    typist.say("/tokens")
    found = re.search(r"Assistant +(\d+) in 1", typist.expect("Left"))
    assert found is not None
    assert int(found[1]) >= sum(map(len, stopped))
    typist.at_prompt()
    typist.say("More")
    typist.expect(r"/65,536 · [\d.]+/s")
    typist.press(CONTROL_C)
    typist.expect("stopped")
    typist.at_prompt()
    typist.say("/stats")
    typist.expect("Replies +2,")


@pytest.mark.parametrize(("columns", "rows"), [(40, 24), (60, 14)])
def test_a_reply_goes_on_in_the_width_of_a_resized_terminal(
    typist: Typist, columns: int, rows: int
) -> None:
    """Resized in the middle of a reply, the text keeps to the width it has, the line to its row."""
    typist.say("Hello")
    wait_for_lines(typist, 2)
    assert len(words(typist)[0]) > 70
    typist.resize(columns, rows)
    typist.read_for(0.1)  # what was on its way is as wide as before
    before = len(words(typist))
    wait_for_lines(typist, before + 2)
    typist.press(CONTROL_C)
    lines = words(typist)[before:-1]
    assert all(columns - 12 < len(line) < columns for line in lines), lines
    assert "/65,536" in typist.shown()[-1]
    assert not any("/65,536" in line for line in typist.shown()[:-1])
    typist.expect("stopped")
    typist.at_prompt()
    assert sum("/65,536" in line for line in typist.shown()) == 1
    typist.resize(80, 24)


def test_what_is_typed_behind_control_c_is_kept(typist: Typist) -> None:
    """Keys that come together with Ctrl-C in a reply are for the prompt that it brings."""
    typist.say("Hello")
    wait_for_lines(typist, 1)
    typist.press(b"lost" + CONTROL_C + b"/stats" + ENTER)
    typist.expect("stopped")
    typist.expect("Replies +1,")
    typist.at_prompt()


def test_a_stop_and_go_keeps_the_conversation(typist: Typist) -> None:
    """Stopped and continued by signals at the prompt, everything is in place."""
    before = typist.modes()
    typist.signal(signal.SIGSTOP)
    typist.signal(signal.SIGCONT)
    typist.read_for(0.3)
    assert typist.modes() == before
    typist.say("Hello")
    wait_for_lines(typist, 1)
    typist.press(CONTROL_C)
    typist.expect("stopped")
    typist.at_prompt()


def test_reading_a_long_prompt_can_be_stopped(smollm2_path: Path, tmp_path: Path) -> None:
    """Ctrl-C while a long message is read brings the prompt at once; the next one is answered."""
    with at_terminal(["--model", smollm2_path, "--max-tokens", "4"], tmp_path) as typist:
        typist.expect("MTP")
        typist.at_prompt()
        typist.paste("\n".join(f"This is line {i} of a long text." for i in range(40)))
        typist.press(ENTER)
        typist.expect(r"reading \d+ ")
        started_s = time.monotonic()
        typist.press(CONTROL_C)
        typist.expect("stopped before the first word")
        typist.at_prompt()
        assert time.monotonic() - started_s < 1.0
        typist.say("Hello")
        typist.expect("tokens?/s")
        typist.at_prompt()
        typist.press(CONTROL_D)
        assert typist.exit_code() == 0
