"""A reply on the screen while it comes: what is thought set apart or folded, what is said below."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtplx.chat.render import Renderer
from mtplx.chat.terminal import Terminal
from mtplx.text.reasoning import Piece, ReplySplitter
from mtplx.text.tags import Part, Tags


@dataclass(frozen=True, slots=True)
class Said:
    """A reply as it goes into the conversation; calls of tools are part of the content."""

    content: str
    reasoning: str


class ReplyView:
    """Takes the text of one reply in pieces of any length.

    inside: the tags that the prompt has opened. shows_thinking: from the beginning; `fold` changes
    it. keep: called with each stretch of the reply: "reasoning" or "text", and what it adds.
    """

    def __init__(
        self,
        terminal: Terminal,
        tags: Sequence[Tags],
        inside: Tags | None,
        *,
        shows_thinking: bool,
        keep: Callable[[str, str], None],
    ) -> None:
        self._terminal = terminal
        self._splitter = ReplySplitter(tags, inside)
        self._calls = next((pair for pair in tags if pair.part is Part.TOOL_CALL), None)
        self._shows_thinking = shows_thinking
        self._keep = keep
        self._renderer: Renderer | None = None
        self._part: Part | None = None
        self._begun_s = 0.0
        self._content = ""
        self._reasoning = ""
        self.has_shown = False  # anything at all

    @property
    def doing(self) -> str:
        """What the model does now, if that is not plain to see."""
        if self._part is not Part.REASONING:
            return ""
        return "thinking" if self._shows_thinking else "thinking, Ctrl-O shows it"

    def feed(self, text: str) -> None:
        for piece in self._splitter.push(text):
            self._show(piece)

    def fold(self) -> None:
        """Show what is thought, or show it no longer."""
        self._shows_thinking = not self._shows_thinking
        if self._part is not Part.REASONING:
            return
        if self._shows_thinking:
            self._renderer = self._terminal.thought_renderer()
            self._write(self._renderer.feed(self._reasoning))
        else:
            self._end_renderer()

    def finish(self) -> Said:
        """The reply, when nothing follows."""
        for piece in self._splitter.finish():
            self._show(piece)
        self._end_part()
        return Said(self._content, self._reasoning)

    def _show(self, piece: Piece) -> None:
        if piece.begins:
            self._end_part()
            self._begin_part(piece.part)
        self._add(piece.part, piece.text)
        if self._renderer is not None:
            self._write(self._renderer.feed(piece.text))

    def _begin_part(self, part: Part) -> None:
        if self.has_shown:
            self._terminal.spacing()
        self._part, self._begun_s = part, time.monotonic()
        if part is Part.REASONING:
            separator = "\n\n" if self._reasoning else ""
            self._add(part, separator)
            if self._shows_thinking:
                self._renderer = self._terminal.thought_renderer()
            return
        self._renderer = self._terminal.renderer()
        if part is Part.TOOL_CALL and self._calls is not None:
            self._add(part, self._calls.opening + "\n")
            self._write(self._renderer.feed("```json\n"))

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is Part.TOOL_CALL and self._calls is not None and self._renderer is not None:
            self._add(part, f"\n{self._calls.closing}\n")
            self._write(self._renderer.feed("\n```\n"))
        folded = part is Part.REASONING and self._renderer is None
        self._end_renderer()
        if folded:
            past_s = time.monotonic() - self._begun_s
            self._terminal.line(f"(thought for {past_s:.0f} s)", self._terminal.theme.dim)
            self.has_shown = True

    def _end_renderer(self) -> None:
        if self._renderer is not None:
            self._write(self._renderer.finish())
            self._renderer = None

    def _add(self, part: Part, text: str) -> None:
        if part is Part.REASONING:
            self._reasoning += text
        else:
            self._content += text
        if text:
            self._keep("reasoning" if part is Part.REASONING else "text", text)

    def _write(self, text: str) -> None:
        if text:
            self.has_shown = True
            self._terminal.write(text)
