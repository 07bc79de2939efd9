"""What is there again after a reply, a loading or a process came to nothing."""

import time
from pathlib import Path

import pytest

from mtplx.chat.archive import Archive, read_conversation
from mtplx.chat.command import Opening
from mtplx.chat.opening import Openings, Start, begun
from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.chat.worker import Worker
from mtplx.errors import ModelNotFoundError
from mtplx.loading.load import LoadedModel, load
from tests.chat.conversations import GREEDY, again, run, say
from tests.tiny_gguf import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "conversations")


@pytest.fixture
def openings(model: LoadedModel, archive: Archive) -> Openings:
    """Where every model is the same one, but for those that are called missing."""

    def find(name: str, progress: object) -> None:
        if "missing" in name:
            raise ModelNotFoundError(name)

    def opened(name: str, progress: object) -> tuple[LoadedModel, Settings]:
        find(name, progress)
        return model, Settings(GREEDY)

    start = Start(find, opened, Opening("first"), archive)
    return Openings(start, Worker(), is_live=False, keeps=True)


def settle(openings: Openings) -> None:
    """Wait for the model that is being loaded, and open its conversation."""
    assert openings.loading is not None
    if openings.loading.loaded is None:
        while not openings.loading.job.has_ended:
            time.sleep(0.001)
    openings.settle()


def kept(model: LoadedModel, archive: Archive, as_model: str) -> Opening:
    """A conversation that was held and left, to be gone on with."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    assert conversation.file is not None
    return Opening(as_model, conversation.transcript, conversation.file)


def test_a_reply_made_again_in_vain_leaves_the_one_before(
    model: LoadedModel, archive: Archive
) -> None:
    """Given up before its first word, it is as if it had never begun, in the file too."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    before, seed = list(conversation.messages), conversation.transcript.reply_seed
    conversation.begin_again()
    conversation.give_up()
    assert conversation.messages == before
    assert conversation.transcript.reply_seed == seed
    assert conversation.file is not None
    assert read_conversation(conversation.file.path).transcript == conversation.transcript
    assert run(conversation, "/undo").draft == "Hello"


def test_a_kill_while_a_reply_is_made_again_leaves_the_one_before(
    model: LoadedModel, archive: Archive
) -> None:
    """Where nothing of the new reply was kept, the reply before is there, and it says so."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive)
    say(conversation, "Hello")
    before = list(conversation.messages)
    conversation.begin_again()
    conversation.close()  # as the end of the process does
    saved, file = archive.open(archive.latest())
    opening = Opening(saved.transcript.model, saved.transcript, file)
    later, told = begun(opening, model, Settings(), archive, keeps=True)
    assert later.messages == before
    assert "the reply before is back" in told[0]


def test_what_is_kept_late_is_kept_whole(model: LoadedModel, archive: Archive) -> None:
    """A conversation that was first kept after a /regen is read back as it is."""
    conversation = Conversation(model, Settings(GREEDY), archive=archive, keeps=False)
    say(conversation, "Hello")
    say(conversation, "And?")
    again(conversation)
    conversation.keep()
    assert conversation.file is not None
    read = read_conversation(conversation.file.path).transcript
    assert read == conversation.transcript
    assert read.num_replies == 3


@pytest.mark.parametrize("name", ["other", "missing"])
def test_another_model_gets_what_is_attached(openings: Openings, tmp_path: Path, name: str) -> None:
    """A file of /read goes with the next message whether or not the new model is there."""
    openings.open(Opening("first"))
    settle(openings)
    assert openings.current is not None
    (tmp_path / "note").write_text("remember")
    run(openings.current, f"/read {tmp_path / 'note'}")
    attached = list(openings.current.attached)
    opening = run(openings.current, f"/model {name}").opening
    assert opening is not None
    openings.open(opening)
    if name == "missing":
        with pytest.raises(ModelNotFoundError):
            settle(openings)
    else:
        settle(openings)
    assert openings.current is not None
    assert openings.current.attached == attached != []


def test_a_loading_that_gave_way_goes_on_where_the_next_fails(
    openings: Openings, model: LoadedModel, archive: Archive
) -> None:
    """A conversation asked for while a model loads, whose model is missing, costs nothing."""
    first, second = kept(model, archive, "some"), kept(model, archive, "missing")
    openings.open(first)
    openings.open(second)
    with pytest.raises(ModelNotFoundError):
        settle(openings)
    settle(openings)
    assert openings.current is not None
    assert openings.current.file is first.file
    assert second.file is not None
    archive.open(second.file.name)[1].close()  # it was left to other processes


def test_a_loading_that_gave_way_leaves_its_file(
    openings: Openings, model: LoadedModel, archive: Archive
) -> None:
    """When the later conversation is open, the one that was being opened can be opened again."""
    first, second = kept(model, archive, "some"), kept(model, archive, "other")
    openings.open(first)
    openings.open(second)
    settle(openings)
    assert openings.current is not None
    assert openings.current.file is second.file
    assert first.file is not None
    archive.open(first.file.name)[1].close()
