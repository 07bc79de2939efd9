import json
from pathlib import Path

import pytest

from mtplx.chat.archive import Archive
from mtplx.chat.command import Desk, Next, Outcome
from mtplx.chat.commands import COMMANDS, find_command, message_of
from mtplx.chat.entry import Entry, unquoted
from mtplx.chat.report import model_name, opening
from mtplx.chat.session import Conversation, model_key
from mtplx.chat.settings import Settings
from mtplx.errors import FileAccessError, SamplingError, UsageError
from mtplx.loading.load import LoadedModel, load
from mtplx.text.template import Message
from tests.chat.conversations import GREEDY, run, say
from tests.tiny_gguf import write_head, write_model

NAMES = [
    "clear",
    "regen",
    "undo",
    "edit",
    "save",
    "load",
    "list",
    "system",
    "set",
    "depth",
    "mtp",
    "law",
    "think",
    "read",
    "image",
    "stats",
    "model",
    "tokens",
    "export",
    "exit",
    "help",
    "context",
]


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def headed(headless: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    head = write_head(tmp_path_factory.mktemp("head") / "head.safetensors", headless.path)
    return load(headless.path, head=head)


@pytest.mark.parametrize("name", NAMES)
def test_a_typed_line_with_a_commands_name_is_that_command(name: str) -> None:
    """Every command is found by a slash and its name, with space around what follows left out."""
    assert find_command(Entry(f"/{name}")) == (COMMANDS[name], "")
    assert find_command(Entry(f"/{name}  ")) == (COMMANDS[name], "")


@pytest.mark.parametrize(
    "entry",
    [
        Entry("/clear", is_literal=True),
        Entry("/clear\nand more"),
        Entry("//clear"),
        Entry(" /clear"),
        Entry("say /clear"),
        Entry(""),
        unquoted('"""/clear"""'),
    ],
)
def test_what_was_not_typed_as_one_line_is_a_message(entry: Entry) -> None:
    """Pasted and quoted text, several lines and a slash elsewhere are no commands."""
    assert find_command(entry) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("//etc/passwd"), "/etc/passwd"),
        (Entry("// a comment"), "/ a comment"),
        (Entry("//a", is_literal=True), "//a"),
        (Entry("//a\nb"), "//a\nb"),
        (Entry("/a", is_literal=True), "/a"),
        (Entry("a // b"), "a // b"),
        (unquoted('"""\n//a\n"""'), "//a"),
        (unquoted('"""a\n\n"""  '), "a\n"),
        (unquoted('"""a'), '"""a'),
        (unquoted('"""'), '"""'),
        (unquoted('""""""'), ""),
    ],
)
def test_two_slashes_are_one_only_where_a_command_could_be(entry: Entry, message: str) -> None:
    """A typed line loses one of two slashes at its beginning; any other text is left exactly."""
    assert find_command(entry) is None
    assert message_of(entry) == message


@pytest.mark.parametrize(
    ("line", "near"),
    [("/hlep", "/help"), ("/stat", "/stats"), ("/sytem be brief", "/system"), ("/quit", "/exit")],
)
def test_a_mistyped_command_is_an_error_with_the_near_one(line: str, near: str) -> None:
    """The error names what was typed, what was probably meant, and how to say it literally."""
    with pytest.raises(UsageError, match=f"Did you mean {near}\\?") as caught:
        find_command(Entry(line))
    assert line.split()[0] in str(caught.value)
    assert f"/{line}" in str(caught.value)


def test_a_path_is_not_taken_for_a_command_silently() -> None:
    """A line that begins with a path is refused with the way to say it, not sent changed."""
    with pytest.raises(UsageError, match="typed with two: //usr/bin/env python"):
        find_command(Entry("/usr/bin/env python"))


def test_words_after_a_command_that_takes_none_are_an_error() -> None:
    """`/clear the table` does not clear anything."""
    with pytest.raises(UsageError, match="takes nothing after it"):
        find_command(Entry("/clear the table"))


def test_help_names_every_command(headless: LoadedModel) -> None:
    """Each command has its line in the help, which needs no model."""
    assert COMMANDS["help"].run(Desk(Archive(Path("/nowhere")), None), "").lines
    lines = run(Conversation(headless, Settings()), "/help").lines
    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == [f"/{name}" for name in COMMANDS]
    assert set(COMMANDS) == set(NAMES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/mtp maybe", "on, off or one of"),
        ("/depth deep", "a number, auto or off"),
        ("/depth 99", "depth is 99"),
        ("/law newton", "law is 'newton'"),
        ("/think loudly", "on, off or hide"),
        ("/context lots", "stop, drop, a number"),
        ("/context 1", "2 or more"),
        ("/load", "takes the name"),
        ("/export pdf", "md or json"),
        ("/image cat.png", "no image input"),
        ("/regen", "no reply"),
        ("/undo", "nothing to take back"),
        ("/save it", "Nothing has been said"),
        ("/export md", "Nothing has been said"),
    ],
)
def test_what_cannot_be_meant_is_an_error_and_changes_nothing(
    headed: LoadedModel, line: str, message: str
) -> None:
    """Each wrong argument is named together with what there is."""
    conversation = Conversation(headed, Settings())
    with pytest.raises((UsageError, SamplingError), match=message):
        run(conversation, line)
    assert conversation.settings == Settings()


def test_clear_begins_a_new_conversation_with_the_same_settings(headed: LoadedModel) -> None:
    """After `/clear` there are no messages, caches or figures, and what was set stays."""
    conversation = Conversation(headed, Settings(GREEDY, system="Be brief.", depth=1))
    say(conversation, "Hello")
    fresh = run(conversation, "/clear").conversation
    assert fresh is not None
    assert (fresh.messages, fresh.state, fresh.num_replies) == ([], None, 0)
    assert fresh.settings == conversation.settings
    assert fresh.seed != conversation.seed


def test_undo_takes_turns_back_one_by_one(headless: LoadedModel) -> None:
    """Each `/undo` takes a message and its reply, gives the message back, and then has nothing."""
    conversation = Conversation(headless, Settings(GREEDY))
    for text in ("one", "two"):
        say(conversation, text)
    assert run(conversation, "/undo").draft == "two"
    assert conversation.messages[0].content == "one"
    assert run(conversation, "/undo").draft == "one"
    with pytest.raises(UsageError):
        run(conversation, "/undo")


def test_regen_asks_for_another_reply(headless: LoadedModel) -> None:
    """`/regen` leads to an answer, and warns that at temperature 0 it will be the same."""
    conversation = Conversation(headless, Settings(GREEDY))
    say(conversation, "Hello")
    outcome = run(conversation, "/regen")
    assert outcome.next is Next.ANSWER
    assert "temperature 0" in outcome.lines[0]


def test_leaving_and_editing_need_no_model() -> None:
    """`/exit` and `/edit` work while a model is loaded."""
    desk = Desk(Archive(Path("/nowhere")), None)
    assert COMMANDS["exit"].run(desk, "").next is Next.LEAVE
    assert COMMANDS["edit"].run(desk, "some text") == Outcome(draft="some text", edits=True)


def test_a_text_file_goes_with_the_next_message_only(headless: LoadedModel, tmp_path: Path) -> None:
    """/read puts a file in front of one message, in a fence that its own fences do not close."""
    file = tmp_path / "a file.md"
    file.write_text("x\n```\ny\n```", "utf-8")
    conversation = Conversation(headless, Settings(GREEDY))
    escaped = str(file).replace(" ", "\\ ")
    for typed in (str(file), f"'{file}'", escaped):
        run(conversation, "/read off")
        assert "a file.md" in run(conversation, f"/read {typed}").lines[0]
    say(conversation, "What?")
    say(conversation, "And?")
    said = [m.content for m in conversation.messages if m.role == "user"]
    assert said == ["a file.md:\n````\nx\n```\ny\n```\n````\n\nWhat?", "And?"]


def test_files_that_cannot_be_read_are_named(headless: LoadedModel, tmp_path: Path) -> None:
    """A missing file, a folder, bytes that are no text and too much text are errors by name."""
    conversation = Conversation(headless, Settings(GREEDY))
    (tmp_path / "binary").write_bytes(b"caf\xe9")
    (tmp_path / "zeros").write_bytes(b"a\0b")
    (tmp_path / "long").write_text("x" * 5000)
    for name, reason in [
        ("missing", "no such file"),
        (".", "folder"),
        ("binary", "byte 0xe9 at offset 3"),
        ("zeros", "zero bytes"),
        ("long", "tokens, and the context holds 1,024"),
    ]:
        with pytest.raises((FileAccessError, UsageError), match=reason) as caught:
            run(conversation, f"/read {tmp_path / name}")
        assert str(tmp_path) in str(caught.value)
    assert conversation.attached == []


@pytest.mark.parametrize("name", ["~nosuchuser/x", "n" * 300, "a\0b"])
@pytest.mark.parametrize("command", ["read", "export md", "load"])
def test_a_path_that_cannot_be_is_a_clear_error(
    headless: LoadedModel, command: str, name: str
) -> None:
    """Somebody without a home, a name that is too long and a zero byte are told as such."""
    conversation = Conversation(headless, Settings(GREEDY))
    conversation.messages.append(Message("user", "Hello"))
    with pytest.raises((FileAccessError, UsageError)):
        run(conversation, f"/{command} {name}.jsonl")
    assert model_name(f"{name}.gguf") == model_key(f"{name}.gguf") == f"{name}.gguf"


def test_a_conversation_is_exported(headless: LoadedModel, tmp_path: Path) -> None:
    """As Markdown it can be read, as JSON it holds everything; no file is written over."""
    conversation = Conversation(headless, Settings(GREEDY, system="Be kind."))
    conversation.begin("Hello 字")
    conversation.end("Hi.", "They greet\nme.")
    for form in ("md", "json"):
        run(conversation, f"/export {form} {tmp_path / 'talk'}.{form}")
    markdown = (tmp_path / "talk.md").read_text("utf-8")
    assert markdown == "## You\n\nHello 字\n\n## tiny.gguf\n\n> They greet\n> me.\n\nHi.\n"
    exported = json.loads((tmp_path / "talk.json").read_text("utf-8"))
    assert exported["messages"] == [
        {"role": "user", "content": "Hello 字"},
        {"role": "assistant", "reasoning": "They greet\nme.", "content": "Hi."},
    ]
    assert exported["settings"]["system"] == "Be kind."
    with pytest.raises(UsageError, match="is there already"):
        run(conversation, f"/export md {tmp_path / 'talk.md'}")


def test_a_model_path_is_shown_by_its_name(headless: LoadedModel) -> None:
    """/model has the file's name and its path, and the opening says why nothing is drafted."""
    conversation = Conversation(headless, Settings())
    assert run(conversation, "/model").lines[0] == f"tiny.gguf: {headless.path}"
    assert opening(conversation)[0].startswith("No MTP head was found")
