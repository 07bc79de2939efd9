from pathlib import Path

import pytest

from mtplx.chat.commands import COMMANDS, Entry, find_command, message_of
from mtplx.chat.session import Conversation, Settings
from mtplx.errors import UsageError
from mtplx.loading.load import LoadedModel, load
from tests.tiny_gguf import write_head, write_model


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def headed(headless: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    head = write_head(tmp_path_factory.mktemp("head") / "head.safetensors", headless.path)
    return load(headless.path, head=head)


def run(conversation: Conversation, line: str) -> list[str]:
    """The lines a typed command shows."""
    found = find_command(Entry(line))
    assert found is not None
    command, argument = found
    return list(command.run(conversation, argument).lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_typed_line_with_a_commands_name_is_that_command(name: str) -> None:
    """Every command is found by a slash and its name, with space around what follows left out."""
    assert find_command(Entry(f"/{name}")) == (COMMANDS[name], "")
    assert find_command(Entry(f"/{name}  ")) == (COMMANDS[name], "")


@pytest.mark.parametrize(
    "entry",
    [
        Entry("/clear", is_pasted=True),
        Entry("/clear\nand more"),
        Entry("//clear"),
        Entry(" /clear"),
        Entry("say /clear"),
        Entry(""),
    ],
)
def test_what_was_not_typed_as_one_line_is_a_message(entry: Entry) -> None:
    """Pasted text, several lines and a slash elsewhere than at the beginning are no commands."""
    assert find_command(entry) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry("//etc/passwd"), "/etc/passwd"),
        (Entry("// a comment"), "/ a comment"),
        (Entry("//a", is_pasted=True), "//a"),
        (Entry("//a\nb"), "//a\nb"),
        (Entry("/a", is_pasted=True), "/a"),
        (Entry("a // b"), "a // b"),
    ],
)
def test_two_slashes_are_one_only_where_a_command_could_be(entry: Entry, message: str) -> None:
    """A typed line loses one of two slashes at its beginning; any other text is left exactly."""
    assert find_command(entry) is None
    assert message_of(entry) == message


@pytest.mark.parametrize(
    ("line", "near"), [("/hlep", "/help"), ("/stat", "/stats"), ("/sytem be brief", "/system")]
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


def test_mtp_is_switched_live(headed: LoadedModel) -> None:
    """`/mtp off` makes the next depth 0 and `/mtp on` brings back the one that was set."""
    conversation = Conversation(headed, Settings(depth=3))
    assert run(conversation, "/mtp off") == ["MTP off."]
    assert conversation.depth == 0
    assert run(conversation, "/mtp on") == ["MTP on, depth 3."]
    assert conversation.depth == 3
    assert run(conversation, "/mtp") == ["MTP on, depth 3."]


def test_mtp_takes_nothing_but_on_and_off(headed: LoadedModel) -> None:
    """Another word after `/mtp` is an error and changes nothing."""
    conversation = Conversation(headed, Settings())
    with pytest.raises(UsageError, match="on or off"):
        run(conversation, "/mtp maybe")
    assert conversation.depth > 0


def test_mtp_on_without_a_head_says_why_not(headless: LoadedModel) -> None:
    """Where there is nothing to draft with, switching it on is an error with the reason."""
    conversation = Conversation(headless, Settings())
    assert headless.no_head_reason is not None
    with pytest.raises(UsageError) as caught:
        run(conversation, "/mtp on")
    assert headless.no_head_reason in str(caught.value)


def test_the_system_prompt_is_set_shown_and_removed(headless: LoadedModel) -> None:
    """`/system TEXT` goes before all messages from the next prompt on, `off` takes it away."""
    conversation = Conversation(headless, Settings())
    run(conversation, "/system  Be brief, please.")
    assert [(m.role, m.content) for m in conversation.prompt] == [("system", "Be brief, please.")]
    assert run(conversation, "/system")[0] == "Be brief, please."
    run(conversation, "/system off")
    assert conversation.prompt == []


def test_clear_begins_a_new_conversation_with_the_same_settings(headed: LoadedModel) -> None:
    """After `/clear` there are no messages, caches or figures, and what was set stays."""
    conversation = Conversation(headed, Settings(system="Be brief.", depth=1))
    list(conversation.begin("Hello")(lambda: False))
    conversation.end("Hi")
    command, argument = find_command(Entry("/clear")) or (None, "")
    assert command is not None
    fresh = command.run(conversation, argument).conversation
    assert fresh is not None
    assert (fresh.messages, fresh.state, fresh.num_replies) == ([], None, 0)
    assert fresh.settings == conversation.settings
    assert fresh.seed != conversation.seed


def test_exit_ends_the_conversations(headless: LoadedModel) -> None:
    """After `/exit` there is no conversation to go on with."""
    found = find_command(Entry("/exit"))
    assert found is not None
    assert found[0].run(Conversation(headless, Settings()), "").conversation is None


def test_help_names_every_command(headless: LoadedModel) -> None:
    """Each command has its line in the help."""
    lines = run(Conversation(headless, Settings()), "/help")
    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == [f"/{name}" for name in COMMANDS]


def test_a_model_path_is_shown_by_its_name(headless: LoadedModel) -> None:
    """The first line has the file's name, not all of its path."""
    from mtplx.chat.report import opening

    first = opening(Conversation(headless, Settings()), is_interactive=True)[0]
    assert first.split()[0] == Path(headless.path).name
