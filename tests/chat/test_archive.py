"""Conversations in files: what is kept, found, refused and gone on with."""

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.chat.archive import Archive, read_conversation
from mtplx.chat.command import Opening
from mtplx.chat.opening import begun
from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.chat.transcript import Record
from mtplx.errors import FileAccessError, UsageError
from mtplx.loading.load import LoadedModel, load
from mtplx.text.template import Message
from tests.chat.conversations import GREEDY, again, run, say
from tests.tiny_gguf import write_head, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "deep" / "conversations")


def kept(model: LoadedModel, archive: Archive, turns: Sequence[str] = ("Hello", "And?")) -> str:
    """The name of a conversation that was held and left."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    for turn in turns:
        say(conversation, turn)
    assert conversation.file is not None
    conversation.close()
    return archive.names()[0]


def resumed(model: LoadedModel, archive: Archive, name: str) -> tuple[Conversation, list[str]]:
    saved, file = archive.open(name)
    opening = Opening(saved.transcript.model, saved.transcript, file)
    return begun(opening, model, Settings(), archive, keeps=True)


def lines(archive: Archive, name: str) -> list[Record]:
    return [json.loads(line) for line in archive.path(name).read_text("utf-8").splitlines()]


def test_nothing_is_written_before_something_is_said(model: LoadedModel, archive: Archive) -> None:
    """A conversation that is opened and left leaves no file."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    run(conversation, "/set temperature 0.5")
    assert archive.names() == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_turns", [1, 3])
def test_a_conversation_goes_on_as_if_it_had_never_been_left(
    model: LoadedModel, archive: Archive, temperature: float, num_turns: int
) -> None:
    """Resumed, the next reply is that of the uninterrupted conversation, settings included."""
    params = replace(GREEDY, temperature=temperature, logit_bias={70: float("-inf"), 71: 2.5})
    settings = Settings(params, depth=1, system="Be kind. 字", context=900, when_full="drop")
    whole = Conversation(model, settings, archive=archive)
    for turn in range(num_turns):
        say(whole, f"message {turn}")
    again(whole)
    run(whole, "/undo")
    run(whole, "/set top_k 50")
    saved = read_conversation(archive.path(archive.names()[0]))
    expected = say(whole, "What next?")
    whole.close()
    copied = archive.path("copied")
    copied.write_bytes(archive.path(archive.names()[0]).read_bytes()[: saved.num_bytes])
    conversation, told = resumed(model, archive, "copied")
    assert told == []
    assert conversation.settings == whole.settings
    assert say(conversation, "What next?").token_ids == expected.token_ids
    assert conversation.messages == whole.messages


def test_a_reply_that_a_kill_cut_off_goes_on_from_there(
    model: LoadedModel, archive: Archive
) -> None:
    """What of a reply was kept before the process was killed is a partial reply afterwards."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    conversation.begin("Hello")
    for part, text in (("reasoning", "Hm"), ("text", "I am"), ("text", " here")):
        conversation.take_in(part, text)
    conversation.close()  # as the end of the process does
    again_, told = resumed(model, archive, archive.names()[0])
    assert again_.messages[-1] == Message("assistant", "I am here", "Hm")
    assert told == ["The last reply was cut off there."]
    again_.close()
    assert resumed(model, archive, archive.names()[0])[1] == []


def test_a_message_that_a_kill_left_without_reply_is_taken_back(
    model: LoadedModel, archive: Archive
) -> None:
    """The conversation goes on before that message, and says so."""
    name = kept(model, archive)
    conversation, _ = resumed(model, archive, name)
    conversation.begin("Lost")
    conversation.close()
    later, told = resumed(model, archive, name)
    assert len(later.messages) == 4
    assert "taken back" in told[0]


@pytest.mark.parametrize("num_cut", [1, 2, 40])
def test_half_a_record_at_the_end_costs_only_itself(
    model: LoadedModel, archive: Archive, num_cut: int
) -> None:
    """What a power cut left of the last record is told, left out, and written over."""
    name = kept(model, archive)
    path = archive.path(name)
    content = path.read_bytes()
    path.write_bytes(content[:-num_cut])
    assert read_conversation(path).was_cut is (num_cut > 1)
    conversation, _ = resumed(model, archive, name)
    say(conversation, "Again")
    conversation.close()
    assert not read_conversation(path).was_cut
    assert len(read_conversation(path).transcript.messages) == (6 if num_cut == 1 else 4)


@pytest.mark.parametrize(
    ("line", "damage"),
    [
        (1, b'{"type": "conversation", "version": 99}'),
        (1, b'{"type": "user", "text": "no beginning"}'),
        (2, b"not JSON at all \xff"),
        (2, b'{"type": "dance"}'),
        (2, b'{"type": "user", "text": 5}'),
        (2, b"[]"),
        (2, b"\0\0\0\0"),
        (3, b'{"type": "regen"}'),
        (3, b'{"type": "drop", "first": 99}'),
        (3, b'{"type": "settings", "settings": {"colour": 1, "params": {}, "draft": {}}}'),
        (3, b'{"type": "settings", "settings": {"params": {"temperature": -1}, "draft": {}}}'),
        (3, b"[" * 100_000),
    ],
)
def test_a_damaged_file_is_a_clear_error_and_left_alone(
    model: LoadedModel, archive: Archive, line: int, damage: bytes
) -> None:
    """The error names the file and the line; not a byte of the file is changed."""
    name = kept(model, archive)
    path = archive.path(name)
    content = path.read_bytes().split(b"\n")
    content[line - 1] = damage
    path.write_bytes(b"\n".join(content))
    with pytest.raises(FileAccessError, match=f"line {line}: this is no conversation") as caught:
        archive.open(name)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"\n".join(content)
    assert archive.latest() == name


def test_an_empty_file_is_a_clear_error(archive: Archive) -> None:
    """A file without any record is no conversation."""
    archive.folder.mkdir(parents=True)
    archive.path("empty").touch()
    with pytest.raises(FileAccessError, match="no whole record"):
        archive.open("empty")


def test_two_processes_cannot_write_to_one_conversation(
    model: LoadedModel, archive: Archive
) -> None:
    """A conversation that is open cannot be opened again, and can when it is left."""
    name = kept(model, archive)
    conversation, _ = resumed(model, archive, name)
    with pytest.raises(FileAccessError, match="open in another MTPLX"):
        archive.open(name)
    conversation.close()
    archive.open(name)[1].close()


def test_names_are_given_once(model: LoadedModel, archive: Archive) -> None:
    """/save NAME renames the file, goes on in it, and refuses a name that is taken."""
    taken = kept(model, archive)
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    assert str(archive.path("über uns")) in run(conversation, "/save über uns").lines[0]
    say(conversation, "And?")
    assert len(read_conversation(archive.path("über uns")).transcript.messages) == 4
    before = archive.path(taken).read_bytes()
    with pytest.raises(UsageError, match="already"):
        run(conversation, f"/save {taken}")
    assert archive.path(taken).read_bytes() == before
    assert sorted(archive.names()) == sorted([taken, "über uns"])


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "a\x1bb", "x" * 81, "字" * 70])
def test_a_name_that_could_lead_elsewhere_is_refused(
    model: LoadedModel, archive: Archive, name: str
) -> None:
    """Slashes, control characters, leading dots and dashes, and overlong names are errors."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    with pytest.raises(UsageError, match="cannot be a name"):
        run(conversation, f"/save {name}")


def test_a_conversation_is_found_by_name_beginning_or_path(
    model: LoadedModel, archive: Archive
) -> None:
    """The exact name wins, then the only one with that beginning; else the near one is named."""
    for name in ("garden", "garden party", "sea"):
        path = archive.path(kept(model, archive, ["Hello"]))
        path.rename(archive.path(name))
    assert archive.find("garden") == archive.path("garden")
    assert archive.find("garden p") == archive.path("garden party")
    assert archive.find(str(archive.path("sea"))) == archive.path("sea")
    with pytest.raises(FileAccessError, match="Several conversations begin with 'g'"):
        archive.find("g")
    with pytest.raises(FileAccessError, match="Did you mean garden"):
        archive.find("gardne")
    with pytest.raises(FileAccessError, match="/list shows"):
        archive.find("")


def test_the_last_one_is_the_one_that_was_changed_last(
    model: LoadedModel, archive: Archive
) -> None:
    """`latest` goes by the time of the last change; without any there is an error."""
    with pytest.raises(FileAccessError, match="no conversation to go on with"):
        archive.latest()
    first = kept(model, archive, ["Hello"])
    second = kept(model, archive, ["Hello"])
    os.utime(archive.path(second), (1, 1))
    assert archive.latest() == first


def test_nobody_else_can_read_them(model: LoadedModel, archive: Archive) -> None:
    """Files and their folder are for their owner only."""
    path = archive.path(kept(model, archive, ["secret"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(archive.folder.stat().st_mode) == 0o700


def test_text_of_any_kind_comes_back(model: LoadedModel, archive: Archive) -> None:
    """Line ends of every kind, control characters and emoji in a message stay as they are."""
    text = "a\r\nb\x0b\x85\u2028\u2029c\x00\x1b[2J 👨\u200d👩\u200d👧 \\ \" '"
    name = kept(model, archive, [text])
    assert read_conversation(archive.path(name)).transcript.messages[0].content == text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no device that is always full")
def test_a_full_disk_ends_the_keeping_and_not_the_conversation(
    model: LoadedModel, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a record cannot be written, the reason is there and replies go on."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    assert conversation.file is not None
    device = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(conversation.file, "_handle", device)
    assert say(conversation, "And?").num_tokens > 0
    os.close(device)
    assert "the disk is full" in str(conversation.problem)


def test_a_folder_that_cannot_be_made_is_a_problem_and_no_error(
    model: LoadedModel, tmp_path: Path
) -> None:
    """Where nothing can be kept it says why, and the conversation is held all the same."""
    (tmp_path / "file").write_text("in the way")
    conversation = Conversation(
        model, Settings(GREEDY), archive=Archive(tmp_path / "file" / "conversations")
    )
    assert say(conversation, "Hello").num_tokens > 0
    assert str(tmp_path / "file") in str(conversation.problem)


def test_the_list_has_titles_and_tells_damaged_ones(model: LoadedModel, archive: Archive) -> None:
    """/list shows turns and the first words of each, and which file cannot be read."""
    first = kept(model, archive, ["\n  Tell me about the sea.\nAll of it.", "More"])
    second = kept(model, archive)
    archive.path(second).write_text("{}\n{}\n")
    listed = run(Conversation(model, Settings(GREEDY), archive=archive), "/list").lines
    by_name = {line.split()[0]: line for line in listed}
    assert "2 turns  tiny.gguf  Tell me about the sea." in by_name[first]
    assert "damaged" in by_name[second]
