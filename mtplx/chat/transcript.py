"""What a conversation is made of, as a sequence of records.

A conversation that goes on performs a record and appends it to its file; one that is read back
performs the same records again. So both are the same at every point.

    conversation    the first one: version, model, seed, settings
    user            a message                       assistant   a finished reply
    piece           part of a reply that is on its way
    undo            the last message and its reply are taken back
    regen           only the reply is, to be made again
    restore         it is there again, as no other has come of that
    settings, seed, model                           what holds from here on
    drop            the oldest messages are no longer given to the model
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mtplx.chat.settings import Settings, settings_from_plain, settings_to_plain
from mtplx.errors import UsageError
from mtplx.text.template import Message

VERSION = 1
Record = Mapping[str, object]
Value = TypeVar("Value")


@dataclass(slots=True)
class Transcript:
    """A conversation up to now.

    model: as it was asked for. seed: what the seeds of all replies are made from.
    messages: all of them; those before `first` are no longer given to the model.
    num_replies: how many it has had, those included that were taken back or made again.
    replaced: the last reply while another one is made in its place.
    unfinished: the reply that is on its way, reasoning and content.
    """

    model: str
    settings: Settings
    seed: int
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    num_replies: int = 0
    replaced: Message | None = None
    unfinished: tuple[str, str] = ("", "")

    @property
    def reply_seed(self) -> int:
        """The seed of the next reply, which no other reply of the conversation has had.

        Random numbers go by position, and replies may stand at the same ones: where history is
        dropped or told again without its reasoning, or a reply is taken back.
        """
        from mtplx.rng import sample_seed  # not at the start: it brings MLX

        return sample_seed(self.seed, self.num_replies)

    @property
    def prompt(self) -> list[Message]:
        """Everything the model is given for the next reply."""
        system = self.settings.system
        told = [Message("system", system)] if system else []
        return [*told, *self.messages[self.first :]]

    @property
    def title(self) -> str:
        """The first line of what was said first."""
        said = next((message.content for message in self.messages), "")
        return next((line.strip() for line in said.split("\n") if line.strip()), "")


def records_of(transcript: Transcript) -> Iterator[Record]:
    """The records that make this transcript anew, from the opening one on."""
    replies = sum(message.role == "assistant" for message in transcript.messages)
    yield {
        "type": "conversation",
        "version": VERSION,
        "model": transcript.model,
        "seed": transcript.seed,
        "settings": settings_to_plain(transcript.settings),
        "taken_back": transcript.num_replies - replies,
    }
    for message in transcript.messages:
        reasoning = {} if message.role == "user" else {"reasoning": message.reasoning}
        yield {"type": message.role, "text": message.content, **reasoning}
    if transcript.first:
        yield {"type": "drop", "first": transcript.first}


def opened(record: Record) -> Transcript:
    """The transcript that an opening record begins.

    Raises UsageError for another record, or one of a later version.
    """
    if record.get("type") != "conversation":
        raise UsageError("It does not begin with a record of type 'conversation'.")
    if record.get("version") != VERSION:
        raise UsageError(
            f"Its version is {record.get('version')!r} and this program reads {VERSION}. "
            "Use the MTPLX that wrote it."
        )
    settings = _take(record, "settings", dict)
    return Transcript(
        _take(record, "model", str),
        settings_from_plain(settings),
        _take(record, "seed", int),
        num_replies=_take(record, "taken_back", int) if "taken_back" in record else 0,
    )


def perform(transcript: Transcript, record: Record) -> None:
    """Change a transcript by a record. Raises UsageError for one that cannot be performed."""
    kind = record.get("type")
    action = _ACTIONS.get(kind) if isinstance(kind, str) else None
    if action is None:
        raise UsageError(f"There is no record of type {kind!r}.")
    action(transcript, record)


def _user(transcript: Transcript, record: Record) -> None:
    transcript.messages.append(Message("user", _take(record, "text", str)))
    transcript.replaced = None
    transcript.unfinished = ("", "")


def _piece(transcript: Transcript, record: Record) -> None:
    reasoning, content = transcript.unfinished
    more = _take(record, "text", str)
    is_thought = _take(record, "part", str) == "reasoning"
    transcript.unfinished = (
        (reasoning + more, content) if is_thought else (reasoning, content + more)
    )


def _assistant(transcript: Transcript, record: Record) -> None:
    _expect_last(transcript, "user")
    reasoning = _take(record, "reasoning", str)
    transcript.messages.append(Message("assistant", _take(record, "text", str), reasoning))
    transcript.num_replies += 1
    transcript.replaced = None
    transcript.unfinished = ("", "")


def _undo(transcript: Transcript, record: Record) -> None:
    if transcript.messages and transcript.messages[-1].role == "assistant":
        del transcript.messages[-1]
    _expect_last(transcript, "user")
    del transcript.messages[-1]
    transcript.replaced = None
    transcript.unfinished = ("", "")
    transcript.first = min(transcript.first, len(transcript.messages))


def _regen(transcript: Transcript, record: Record) -> None:
    _expect_last(transcript, "assistant")
    transcript.replaced = transcript.messages.pop()


def _restore(transcript: Transcript, record: Record) -> None:
    if transcript.replaced is None:
        raise UsageError("There is no reply that it could bring back.")
    transcript.messages.append(transcript.replaced)
    transcript.replaced = None
    transcript.unfinished = ("", "")


def _settings(transcript: Transcript, record: Record) -> None:
    transcript.settings = settings_from_plain(_take(record, "settings", dict))


def _seed(transcript: Transcript, record: Record) -> None:
    transcript.seed = _take(record, "seed", int)


def _model(transcript: Transcript, record: Record) -> None:
    transcript.model = _take(record, "model", str)


def _drop(transcript: Transcript, record: Record) -> None:
    first = _take(record, "first", int)
    if not 0 <= first <= len(transcript.messages):
        raise UsageError(f"It leaves out {first} of {len(transcript.messages)} messages.")
    transcript.first = first


_ACTIONS: Mapping[str, Callable[[Transcript, Record], None]] = {
    "user": _user,
    "piece": _piece,
    "assistant": _assistant,
    "undo": _undo,
    "regen": _regen,
    "restore": _restore,
    "settings": _settings,
    "seed": _seed,
    "model": _model,
    "drop": _drop,
}


def _expect_last(transcript: Transcript, role: str) -> None:
    if not transcript.messages or transcript.messages[-1].role != role:
        raise UsageError(f"There is no last message of the {role} for it.")


def _take(record: Record, name: str, kind: type[Value]) -> Value:
    """A field of a record, which has to be of this type."""
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"Its {name} is {value!r}, but must be of type {kind.__name__}.")
    return value
