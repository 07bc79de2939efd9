"""The conversation at a real terminal, with a model that talks noise quickly."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat.typist import (
    ALT_ENTER,
    CONTROL_C,
    ENTER,
    TAB,
    UP,
    Typist,
    at_terminal,
    said,
)
from tests.tiny_gguf import write_model

pytestmark = pytest.mark.slow
CLOSING = r"tokens?/s .*\n"
EDITOR = """#!/bin/sh
cp "$1" "$1.before"; mv "$1.before" before.txt
printf '/from the\\neditor\\n' > "$1"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Typist]:
    editor = home / "editor.sh"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    (home / "shopping list.txt").write_text("remember the milk\n")
    model = write_model(home / "tiny.gguf")
    write_model(home / "other.gguf")
    with at_terminal(["--model", model, "--max-tokens", "8"], home, VISUAL=str(editor)) as typist:
        typist.expect("no MTP head|No MTP head")
        yield typist


@pytest.fixture
def typist(shared: Typist) -> Typist:
    """At an empty prompt of a new conversation."""
    shared.press(CONTROL_C)
    shared.say("/clear")
    shared.expect("A new conversation.")
    shared.at_prompt()
    return shared


def entries(home: Path) -> list[str]:
    """What the history file holds, the oldest first."""
    content = (home / "DATA" / "mtplx" / "chat-history").read_bytes().decode()
    blocks = re.findall(r"\n# [^\n]*\n((?:\+[^\n]*\n)+)", content)
    return ["\n".join(line[1:] for line in block.split("\n")[:-1]) for block in blocks]


def num_replies(typist: Typist) -> int:
    typist.say("/stats")
    found = re.search(r"Replies +(\d+),", typist.expect(r"Replies +\d+,"))
    assert found is not None
    return int(found[1])


def test_a_long_paste_is_one_message_to_the_byte(typist: Typist) -> None:
    """200 pasted lines with a command and quotes inside are sent as they are, on Enter only."""
    lines = [f"{i} \té👍🏽" for i in range(200)]
    lines[0], lines[50], lines[60], lines[-1] = '"""', "/clear", '"""', "end\\"
    text = "\n".join(lines)
    typist.paste(text)
    typist.read_for(1.0)
    assert not re.search(CLOSING, typist.unread())
    typist.press(ENTER)
    typist.expect(r"more lines\r\n[\s\S]*(\d tokens?/s|The prompt has)")
    typist.press(UP)  # the message is beyond the tiny model's context, so it was taken back
    typist.read_for(0.3)
    typist.press(CONTROL_C)
    assert num_replies(typist) == 0


def test_a_paste_reaches_the_model_to_the_byte(typist: Typist, home: Path) -> None:
    """What was pasted, quotes and a command at its beginning included, is the message."""
    text = '/clear\n\n"""  \n\té 字👍🏽\\'
    typist.paste(text)
    typist.press(ENTER)
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == [text]


def test_a_pasted_command_is_a_message(typist: Typist, home: Path) -> None:
    """A single pasted line is no command, also when it is brought back from the history."""
    for keys in (b"\x1b[200~/exit\x1b[201~", UP):
        typist.press(keys)
        typist.read_for(0.3)
        typist.press(ENTER)
        typist.expect(CLOSING)
        typist.at_prompt()
    assert entries(home)[-1] == "//exit"
    assert said(home) == ["/exit", "/exit"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (b"one\\\rtwo", "one\ntwo"),
        (b"one" + ALT_ENTER + b"two", "one\ntwo"),
        (b'"""\rone\r/exit\r"""', "one\n/exit"),
        (b'"""//one"""', "//one"),
        (b"//exit", "/exit"),
        (b"/exit" + ALT_ENTER + b"is a word", "/exit\nis a word"),
        (b'\x1b[200~"""a\x1b[201~', '"""a'),
        (b"caf\xe9 \xff", "caf\ufffd \ufffd"),
    ],
)
def test_what_is_typed_is_the_message(
    typist: Typist, home: Path, keys: bytes, message: str
) -> None:
    """New lines by backslash, Alt-Enter and three quotes; two slashes; text that is no UTF-8."""
    typist.press(keys)
    typist.read_for(0.3)
    typist.press(ENTER)
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == [message]


def test_control_c_at_an_empty_prompt_gives_a_hint(typist: Typist) -> None:
    """Ctrl-C without text tells how to leave, as often as it is pressed, and does not leave."""
    for _ in range(3):
        typist.press(CONTROL_C)
        typist.expect("Ctrl-D or /exit leaves")
    assert num_replies(typist) == 0


def test_a_signal_in_a_search_gives_the_line_back(typist: Typist) -> None:
    """SIGINT while the history is searched ends the search, and everything can be typed again."""
    typist.press(b"\x12")
    typist.expect("search")
    typist.signal(signal.SIGINT)
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
    typist.at_prompt()
    assert said(home) == ["one", "first\n/exit\nlast"]


def test_an_empty_line_is_not_said(typist: Typist) -> None:
    """Enter alone, or after spaces, asks the model nothing."""
    typist.press(b"\r\r   \r")
    assert num_replies(typist) == 0


def test_tab_completes_commands_what_follows_them_and_paths(typist: Typist, home: Path) -> None:
    """A command by its beginning, a field of /set, and a path with spaces after /read."""
    typist.press(b"/he" + TAB)
    typist.read_for(0.5)
    typist.press(ENTER)
    typist.expect("begin a new conversation")
    typist.press(b"/set min" + TAB)
    typist.read_for(0.5)
    typist.press(ENTER)
    typist.expect("min_p 0")
    typist.press(b"/read shop" + TAB)
    typist.read_for(0.5)
    typist.press(ENTER)
    typist.expect("shopping list.txt, .* goes with your next message")
    typist.say("What is it?")
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == ["shopping list.txt:\n```\nremember the milk\n```\n\nWhat is it?"]


@pytest.mark.parametrize("keys", [b"/edit draft\r", b"draft\x18\x05"])
def test_a_message_can_be_written_in_an_editor(typist: Typist, home: Path, keys: bytes) -> None:
    """/edit and Ctrl-X Ctrl-E open the editor with the text; what it leaves is sent by Enter."""
    typist.press(keys)
    typist.expect("/from the")
    typist.read_for(0.3)
    assert (home / "before.txt").read_text() == "draft\n"
    typist.press(ENTER)
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == ["/from the\neditor"]


def test_undo_puts_the_message_back_into_the_line(typist: Typist, home: Path) -> None:
    """After /undo the message can be changed and sent again, and only that one was said."""
    typist.say("first try")
    typist.expect(CLOSING)
    typist.at_prompt()
    typist.say("/undo")
    typist.expect("taken back")
    typist.expect("> first try")
    typist.press(b" again" + ENTER)
    typist.expect(CLOSING)
    typist.at_prompt()
    typist.say("/tokens")
    typist.expect(r"User +\d+ in 1")
    assert said(home)[-1] == "first try again"


def test_an_image_is_a_clear_error(typist: Typist) -> None:
    """A model without image input says so by name."""
    typist.say("/image cat.png")
    typist.expect(r"tiny\.gguf has no image input")


def test_another_conversation_goes_on(typist: Typist, home: Path) -> None:
    """/load shows the last turn of the named conversation, and what is said then belongs to it."""
    typist.say("One")
    typist.expect(CLOSING)
    typist.at_prompt()
    typist.say("/save the first")
    typist.expect("Kept as the first")
    typist.say("/clear")
    typist.expect("A new conversation")
    typist.at_prompt()
    typist.say("Two")
    typist.expect(CLOSING)
    typist.at_prompt()
    typist.say("/load the f")
    typist.expect("> One")
    typist.at_prompt()
    typist.say("Three")
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == ["One", "Three"]
    typist.say("/load missing")
    typist.expect("no conversation 'missing'")
    typist.at_prompt()
    assert num_replies(typist) == 1  # since it was loaded


def test_the_conversation_goes_on_with_another_model(typist: Typist, home: Path) -> None:
    """/model loads another model for the same conversation; one that is not there does nothing."""
    typist.say("One")
    typist.expect(CLOSING)
    typist.at_prompt()
    typist.say(f"/model {home}/missing.gguf")
    typist.expect("missing.gguf")
    typist.expect(r"[Nn]o|not")
    typist.at_prompt()
    typist.say(f"/model {home}/other.gguf")
    typist.expect("> One")
    typist.at_prompt()
    typist.say("Two")
    typist.expect(CLOSING)
    typist.at_prompt()
    assert said(home) == ["One", "Two"]
    typist.say("/model")
    typist.expect(r"other\.gguf")
    typist.at_prompt()
    typist.say(f"/model {home}/tiny.gguf")
    typist.expect("> Two")
    typist.at_prompt()
