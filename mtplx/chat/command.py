"""What a command is, what it works on, and what it leads to."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from mtplx.chat.archive import Archive, ConversationFile
from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.chat.transcript import Transcript


@unique
class Next(Enum):
    """What is done after a command: read on, answer the last message once more, or leave."""

    READ = "read"
    ANSWER = "answer"
    LEAVE = "leave"


Settle = Callable[[Settings, Settings], Settings]
"""(settings of the conversation that goes on, settings for its model) -> those it is to have"""


@dataclass(frozen=True, slots=True)
class Opening:
    """A conversation that is to begin once its model is loaded.

    model: what to load. transcript, file: of a conversation that goes on; None for a new one.
    attached: texts that go before its next message.
    """

    model: str
    transcript: Transcript | None = None
    file: ConversationFile | None = None
    settle: Settle = lambda saved, fresh: saved
    attached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Desk:
    """What commands work on. current: None while a model is loaded."""

    archive: Archive
    current: Conversation | None

    @property
    def conversation(self) -> Conversation:
        """For commands that need the model."""
        assert self.current is not None
        return self.current


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command leads to.

    lines: to show, and `indent`: the width of the column that they begin with.
    conversation: the one that goes on, None for the same one. opening: one that has to be opened.
    draft: what the next line holds already. edits: it is edited outside first.
    """

    lines: Sequence[str] = ()
    indent: int = 0
    next: Next = Next.READ
    conversation: Conversation | None = None
    opening: Opening | None = None
    draft: str = ""
    edits: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """argument: how the help shows what follows the name; empty where nothing may.

    needs_model: whether it waits until the model is loaded.
    choices: what may follow the name, for completion; None where a path does.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Desk, str], Outcome]
    needs_model: bool = True
    choices: Callable[[Desk], Iterable[str]] | None = lambda desk: ()
