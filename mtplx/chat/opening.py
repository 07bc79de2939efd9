"""Opening a conversation: its model is loaded in the worker's thread, then it can begin."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mtplx.chat.archive import Archive
from mtplx.chat.command import Opening
from mtplx.chat.report import model_name
from mtplx.chat.session import Conversation, model_key
from mtplx.chat.settings import Settings
from mtplx.chat.worker import Worker
from mtplx.errors import MtplxError

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel
    from mtplx.loading.progress import Progress

_NEWS_S = 0.2  # between two reports of progress


@dataclass(frozen=True, slots=True)
class Start:
    """What a command line asks for.

    find_model: has a model's files on this machine, by the model's name. open_model: loads it and
        gives it with the settings that it is to have. What follows a download is None where that
        is shown in another way.
    first: the conversation to begin with. archive: where conversations are kept.
    keeps: whether new ones are, without being asked; None is where somebody types.
    """

    find_model: "Callable[[str, Progress | None], object]"
    open_model: "Callable[[str, Progress | None], tuple[LoadedModel, Settings]]"
    first: Opening
    archive: Archive
    keeps: bool | None = None


class Loading:
    """A model that is being loaded, in the worker's thread.

    before: the conversation that is left for it, or another loading that had not settled. It is
    given up with its model, so that the memory need not hold both, as soon as it is certain that
    there is another one.
    backs: what opens again what was left, the last one first.
    loaded: the model and its settings, None before they are there.
    """

    def __init__(
        self,
        start: Start,
        opening: Opening,
        before: "Conversation | Loading | None",
        backs: tuple[Opening, ...] = (),
    ) -> None:
        self.opening = opening
        self.before = before
        self.backs = backs
        self.loaded: tuple[LoadedModel, Settings] | None = None
        self._start = start
        self._told_s = 0.0
        self._progress: tuple[int, int, str] | None = None

    def begin(self, worker: Worker, *, is_live: bool) -> None:
        """is_live: `doing` is shown somewhere."""

        def tell(done_bytes: int, total_bytes: int, what: str) -> None:
            self._progress = (done_bytes, total_bytes, what)
            if time.monotonic() - self._told_s > _NEWS_S:
                self._told_s = time.monotonic()
                worker.wake()

        self.job = worker.start(lambda cancelled: self._load(tell if is_live else None))

    @property
    def doing(self) -> str:
        """What goes on now, for the status line."""
        name = model_name(self.opening.model)
        if self._progress is None:
            return f"loading {name} ..."
        done_bytes, total_bytes, what = self._progress
        size = f" {done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB" if total_bytes else ""
        return f"{what} {name}{size} ..."

    def _load(self, tell: "Progress | None") -> Iterable[None]:
        if self.before is not None:
            self._start.find_model(self.opening.model, tell)
            self.before = None
        self.loaded = self._start.open_model(self.opening.model, tell)
        return ()


class Openings:
    """The conversation that is open, and the one that will be when its model is loaded."""

    def __init__(self, start: Start, worker: Worker, *, is_live: bool, keeps: bool) -> None:
        self.current: Conversation | None = None
        self.loading: Loading | None = None
        self._start = start
        self._worker = worker
        self._is_live = is_live
        self._keeps = keeps

    def open(self, opening: Opening) -> None:
        """Begin to open it; where that takes no loading, `settle` can follow at once."""
        current, pending = self.current, self.loading
        if current is not None:
            loading = Loading(self._start, opening, current, (_opening_of(current),))
        elif pending is not None:
            backs = (pending.opening, *pending.backs)
            loading = Loading(self._start, opening, pending, backs)
        else:
            loading = Loading(self._start, opening, None)
        if current is not None and current.transcript.model == model_key(opening.model):
            loading.loaded = (current.model, current.settings)
        else:
            loading.begin(self._worker, is_live=self._is_live)
        self.current, self.loading = None, loading

    @property
    def can_settle(self) -> bool:
        loading = self.loading
        return loading is not None and (loading.loaded is not None or loading.job.has_ended)

    def settle(self) -> list[str]:
        """Open the conversation whose model is there; gives what is to be said about it.

        Where it cannot be opened, raises why; the one before is then open or being loaded, if
        there was one.
        """
        loading, self.loading = self.loading, None
        assert loading is not None
        try:
            if loading.loaded is None:
                loading.job.check()
            assert loading.loaded is not None
            self.current, lines = begun(
                loading.opening, *loading.loaded, self._start.archive, keeps=self._keeps
            )
        except MtplxError:
            self._go_back(loading)
            raise
        for back in loading.backs:
            if back.file is not None and back.file is not self.current.file:
                back.file.close()
        return lines

    def _go_back(self, loading: Loading) -> None:
        opened = loading.opening.file
        if opened is not None and all(opened is not back.file for back in loading.backs):
            opened.close()
        if isinstance(loading.before, Loading):
            self.loading = loading.before
        elif loading.before is not None:
            self.current = loading.before
        elif loading.backs:
            back, *more = loading.backs
            self.loading = Loading(self._start, back, None, tuple(more))
            self.loading.begin(self._worker, is_live=self._is_live)


def _opening_of(conversation: Conversation) -> Opening:
    return Opening(
        conversation.model.name,
        conversation.transcript,
        conversation.file,
        attached=tuple(conversation.attached),
    )


def begun(
    opening: Opening, model: "LoadedModel", settings: Settings, archive: Archive, *, keeps: bool
) -> tuple[Conversation, list[str]]:
    """The conversation that is opened, and what is to be said about it.

    A reply that an earlier process was killed in goes on as if it had been stopped there; a
    message without any reply is taken back, and a reply that was only to be made again is there
    again. Raises what Conversation raises.
    """
    transcript = opening.transcript
    if transcript is None:
        return Conversation(model, settings, archive=archive, keeps=keeps), []
    chosen = opening.settle(transcript.settings, settings)
    if not model.can_draft and chosen.draft.uses_head:
        chosen = replace(chosen, depth=None)
    conversation = Conversation(
        model, chosen, archive=archive, keeps=keeps, transcript=transcript, file=opening.file
    )
    conversation.attached = list(opening.attached)
    lines = []
    reasoning, content = transcript.unfinished
    if reasoning or content:
        conversation.end(content, reasoning, "killed")
        lines.append("The last reply was cut off there.")
    elif transcript.replaced is not None:
        conversation.give_up()
        lines.append("Your last message was being answered again; the reply before is back.")
    elif transcript.messages and transcript.messages[-1].role == "user":
        conversation.take_back()
        lines.append("Your last message had no reply and was taken back; Up shows it again.")
    return conversation, lines
