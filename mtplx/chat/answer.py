"""Showing a reply while it comes, and taking it into the conversation as far as it went."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtplx.chat.follow import Watch
from mtplx.chat.reply_view import ReplyView, Said
from mtplx.chat.session import Begun, Conversation, Reply
from mtplx.chat.status import Pace, status_text
from mtplx.chat.terminal import Terminal

if TYPE_CHECKING:
    from mtplx.generate import Result

_KEPT_EVERY_S = 1.0  # of a reply that comes, what a killed process loses at most
_STATUS_EVERY_S = 0.25


@dataclass(slots=True)
class Answer:
    """A reply that is being shown.

    said: as far as it went, None before its first character. result: None where it was left early.
    """

    conversation: Conversation
    terminal: Terminal
    pace: Pace = field(default_factory=Pace)
    said: Said | None = None
    result: "Result | None" = None
    _view: ReplyView | None = None
    _num_prompt_tokens: int = 0
    _pieces: list[tuple[str, str]] = field(default_factory=list)
    _kept_s: float = field(default_factory=time.monotonic)
    _status_s: float = 0.0

    def show(self, reply: Reply, watch: Watch) -> None:
        """Until it ends or is stopped. Raises what ended it; `said` is what there was of it."""
        job = watch.worker.start(reply)
        try:
            for item in watch.follow(job, fold=self._fold):
                if isinstance(item, Begun):
                    self._begin(item)
                elif item is not None:
                    assert self._view is not None
                    self._view.feed(item.text)
                    self.pace.add(item)
                    self.result = item.result or self.result
                self._show_status()
        finally:
            self._end()

    def _begin(self, begun: Begun) -> None:
        conversation, num_dropped = self.conversation, begun.fitted.num_dropped
        if num_dropped:
            conversation.leave_out(conversation.transcript.first + num_dropped)
            self.terminal.line(
                f"(the context is full: {num_dropped} more of the oldest messages are left out)",
                self.terminal.theme.dim,
            )
        self._num_prompt_tokens = len(begun.fitted.token_ids)
        self._view = ReplyView(
            self.terminal,
            conversation.tags,
            begun.inside,
            shows_thinking=conversation.settings.shows_thinking,
            keep=self._keep,
        )

    def _end(self) -> None:
        try:
            if self._view is not None:
                said = self._view.finish()
                self.said = said if said.content or said.reasoning else None
        finally:
            self.terminal.status.close()

    def _fold(self) -> None:
        if self._view is not None:
            self._view.fold()

    def _keep(self, part: str, text: str) -> None:
        """Keep what came about every second, in one record for each part."""
        if self._pieces and self._pieces[-1][0] == part:
            text = self._pieces.pop()[1] + text
        self._pieces.append((part, text))
        if time.monotonic() - self._kept_s >= _KEPT_EVERY_S:
            for piece in self._pieces:
                self.conversation.take_in(*piece)
            self._pieces = []
            self._kept_s = time.monotonic()

    def _show_status(self) -> None:
        now_s = time.monotonic()
        if now_s - self._status_s < _STATUS_EVERY_S:
            return
        self._status_s = now_s
        num_cached = self._num_prompt_tokens + self.pace.num_tokens
        text = status_text(
            self.conversation,
            self.pace,
            self.terminal.columns() - 1,
            doing=self._doing(),
            num_cached=num_cached,
        )
        self.terminal.status.show(text)

    def _doing(self) -> str:
        if self._view is None or self.pace.num_rounds == 0:
            num_read, num_tokens = self.conversation.reading
            if num_read == 0:
                return f"reading {num_tokens:,} tokens"
            return f"reading {num_read:,} of {num_tokens:,} tokens"
        return self._view.doing
