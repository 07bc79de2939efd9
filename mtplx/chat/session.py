"""A conversation with a model: what was said, how replies are made, and what they have cost.

Nothing here knows of a terminal. The prompt of every reply is made anew from the messages, and
one decode state per conversation finds out how much of it has been computed already.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mtplx.chat.archive import Archive, ConversationFile
from mtplx.chat.context import Fitted, Room, fit
from mtplx.chat.memory import cache_bytes_per_token, free_bytes, growing_bytes, tokens_that_fit
from mtplx.chat.settings import Settings, settings_to_plain
from mtplx.chat.totals import add_stats
from mtplx.chat.transcript import Record, Transcript, perform, records_of
from mtplx.chat.typed_path import existing
from mtplx.errors import CheckpointError, MemoryLimitError, MtplxError
from mtplx.files import access_error
from mtplx.stats import DecodeStats
from mtplx.text.tags import Tags, opened_by, reply_tags, tag_ids
from mtplx.text.template import Message, template_has

if TYPE_CHECKING:
    from mtplx.generate import TextEvent
    from mtplx.loading.load import LoadedModel
    from mtplx.state import DecodeState

THINKING_SWITCHES = ("enable_thinking", "thinking")  # as published templates ask for it


@dataclass(frozen=True, slots=True)
class Begun:
    """How a reply begins: its prompt, its room, and the tags that the prompt has opened."""

    fitted: Fitted
    room: Room
    inside: Tags | None


Reply = Callable[[Callable[[], bool]], Iterator["Begun | TextEvent"]]


class Conversation:
    """One conversation with one model. Only what `begin` returns may compute with the model.

    transcript: of an earlier conversation that goes on; `file` is then its file.
    archive: where conversations are kept. keeps: whether a new one is, without being asked.
    problem: why it is no longer kept, if so.
    reading: tokens of the prompt that are in the caches, and its tokens, while it is read.

    Raises CheckpointError for a model that knows no turns, UsageError for settings that it cannot
    follow and MemoryLimitError for a context that it cannot have.
    """

    def __init__(
        self,
        model: "LoadedModel",
        settings: Settings,
        *,
        archive: Archive | None = None,
        keeps: bool = True,
        transcript: Transcript | None = None,
        file: ConversationFile | None = None,
    ) -> None:
        _check(model, settings)
        self.model = model
        self.archive = archive
        self.keeps = keeps
        self.file = file
        name = model_key(model.name)
        self.transcript = transcript or Transcript(name, settings, _seed(settings))
        self.tags = reply_tags(model.tokenizer)
        self.totals = DecodeStats()  # of all replies whose decoding has ended
        self.num_replies = 0
        self.state: DecodeState | None = None
        self.attached: list[str] = []  # texts that go before the next message
        self.problem: MtplxError | None = None
        self.reading: tuple[int, int] = (0, 0)
        self._bytes_per_token: int | None = None
        if self.transcript.model != name:
            self._do({"type": "model", "model": name})
        if self.transcript.settings != settings:
            self.settings = settings

    @property
    def settings(self) -> Settings:
        return self.transcript.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        """Raises UsageError for settings that the model cannot follow."""
        _check(self.model, settings)
        before = self.transcript.settings
        self.transcript.settings = settings
        if settings.params.seed != before.params.seed:
            self.transcript.seed = _seed(settings)
            self._keep({"type": "seed", "seed": self.transcript.seed})
        self._keep({"type": "settings", "settings": settings_to_plain(settings)})

    @property
    def messages(self) -> list[Message]:
        return self.transcript.messages

    @property
    def seed(self) -> int:
        return self.transcript.seed

    @property
    def can_draft(self) -> bool:
        """Whether there is anything to draft with."""
        return self.model.can_draft or not self.settings.draft.uses_head

    @property
    def depth(self) -> int | str:
        """Tokens drafted per round, or "auto"; 0 is plain decoding."""
        from mtplx.request import checked_depth

        settings = self.settings
        return checked_depth(
            self.model, settings.depth if settings.drafts else 0, settings.draft, None
        )

    @property
    def context(self) -> int:
        """The tokens that prompt and reply may have together."""
        most = self.model.target.context_length
        return min(most, self.settings.context or most)

    @property
    def thinking_switch(self) -> str | None:
        """The name by which the template can be told whether to think, if it can."""
        template = self.model.tokenizer.chat_template or ""
        return next((name for name in THINKING_SWITCHES if template_has(template, name)), None)

    @property
    def switches(self) -> dict[str, Any]:
        """What the template is told besides the messages."""
        name, thinks = self.thinking_switch, self.settings.thinks
        return {} if name is None or thinks is None else {name: thinks}

    def fresh(self) -> "Conversation":
        """A new conversation with the same model and settings."""
        self.close()
        return Conversation(self.model, self.settings, archive=self.archive, keeps=self.keeps)

    def begin(self, text: str) -> Reply:
        """Say something, with what is attached in front; what is returned gives the reply, until
        its argument answers True.

        To be followed by `end` or `give_up`.
        """
        if self.keeps:
            self.keep()
        self._do({"type": "user", "text": "\n\n".join([*self.attached, text])})
        return self._reply()

    def begin_again(self) -> Reply:
        """Take the last reply back and have another one. Raises UsageError where there is none."""
        self._do({"type": "regen"})
        return self._reply()

    def take_in(self, part: str, text: str) -> None:
        """Keep a piece of the reply that is on its way: part "reasoning" or "text"."""
        self._do({"type": "piece", "part": part, "text": text})

    def end(self, text: str, reasoning: str = "", finish: str = "stop") -> None:
        """The reply to what was said last, as far as it went."""
        self._do({"type": "assistant", "text": text, "reasoning": reasoning, "finish": finish})
        self.num_replies += 1
        self.attached = []

    def take_back(self) -> str:
        """Unsay what was said last, and its reply if it has one; gives what it was.

        Raises UsageError where nothing was said.
        """
        said = [message.content for message in self.messages if message.role == "user"]
        self._do({"type": "undo"})
        return said[-1]

    def give_up(self) -> None:
        """End a reply of which there is not a word: as if it had never begun."""
        self._do({"type": "undo" if self.transcript.replaced is None else "restore"})

    def leave_out(self, first: int) -> None:
        """Give the model no messages before this one any longer."""
        self._do({"type": "drop", "first": first})

    def keep(self) -> None:
        """Have a file for it from now on, if there is an archive."""
        if self.file is not None or self.archive is None or self.problem is not None:
            return
        try:
            self.file = self.archive.create()
        except MtplxError as error:
            self.problem = error
        for record in records_of(self.transcript):
            self._keep(record)

    def close(self) -> None:
        """Leave the file to other processes."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def _reply(self) -> Reply:
        transcript, tokenizer, depth = self.transcript, self.model.tokenizer, self.depth
        settings = self.settings
        params = replace(settings.params, seed=transcript.reply_seed)
        prompt, context, switches = transcript.prompt, self.context, self.switches

        def reply(cancelled: Callable[[], bool]) -> Iterator["Begun | TextEvent"]:
            from mtplx.generate import EncodedPrompt, stream
            from mtplx.request import depth_policy

            room = self._room(context)
            fitted = fit(
                tokenizer,
                prompt,
                switches,
                room,
                max_tokens=params.max_tokens,
                drops=settings.when_full == "drop",
            )
            self.reading = (0, len(fitted.token_ids))
            yield Begun(fitted, room, opened_by(tokenizer, fitted.token_ids, self.tags))
            if self.state is None:
                self.state = self.model.new_state(fitted.token_ids)
            for event in stream(
                self.model,
                EncodedPrompt(fitted.token_ids, tag_ids(tokenizer, self.tags)),
                replace(params, max_tokens=fitted.max_tokens),
                depth=depth_policy(self.model, depth, settings.draft, settings.params, self.state),
                draft=settings.draft,
                state=self.state,
                interrupted=cancelled,
                progress=self._note_reading,
            ):
                if event.result is not None:
                    add_stats(self.totals, event.result.stats)
                yield event

        return reply

    def _room(self, context: int) -> Room:
        """What of the context the memory can hold now; for the worker's thread."""
        if self._bytes_per_token is None:
            self._bytes_per_token = cache_bytes_per_token(self.model.target)
        held_bytes = growing_bytes(self.state.cache) if self.state is not None else 0
        holds = tokens_that_fit(self._bytes_per_token, held_bytes, free_bytes())
        return Room(context) if context <= holds else Room(holds, is_memory=True)

    def _note_reading(self, num_read: int, num_tokens: int) -> None:
        self.reading = (num_read, num_tokens)

    def _do(self, record: Record) -> None:
        perform(self.transcript, record)
        self._keep(record)

    def _keep(self, record: Record) -> None:
        if self.file is None or self.problem is not None:
            return
        try:
            self.file.append(record)
        except OSError as error:  # a full disk must not end a conversation
            self.problem = access_error("write", self.file.path, error)


def model_key(name: str) -> str:
    """A model's name as it is kept: a path from anywhere, an alias or a hub id as it is."""
    path = existing(name)
    return name if path is None else str(path.absolute())


def _seed(settings: Settings) -> int:
    from mtplx.rng import fresh_seed

    return settings.params.seed if settings.params.seed is not None else fresh_seed()


def _check(model: "LoadedModel", settings: Settings) -> None:
    from mtplx.request import checked_depth

    if model.tokenizer.chat_template is None:
        raise CheckpointError(
            f"{model.name} has no chat template, so it cannot hold a conversation. Use a chat or "
            "instruct model, or continue a plain text with `mtplx generate --raw`."
        )
    most = model.target.context_length
    if settings.context is not None and settings.context > most:
        reason = model.context_note or f"{model.name} knows no longer ones."
        raise MemoryLimitError(
            f"A context of {settings.context:,} tokens cannot be had, the largest is {most:,}. "
            f"{reason}"
        )
    checked_depth(model, settings.depth, settings.draft, None)
