"""The terminal conversation itself: read an entry, run a command or show a reply, and again."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from mtplx.chat.commands import Entry, find_command, message_of
from mtplx.chat.editor import Editor
from mtplx.chat.history import EntryHistory
from mtplx.chat.reader import LineReader, Reader
from mtplx.chat.report import closing, opening
from mtplx.chat.session import Conversation, Settings
from mtplx.chat.terminal import Terminal
from mtplx.chat.worker import Job, Worker
from mtplx.errors import MtplxError
from mtplx.generate import Result, TextEvent
from mtplx.loading.load import LoadedModel
from mtplx.paths import data_dir

INTERRUPTED = 130  # exit code, as a shell has it
PATIENCE_S = 0.5  # how long a stopped reply may take to end by itself
SILENCE_S = 1.0  # after so long without text, a word tells what is going on
_TAKEN_BACK = "Your message was taken back: Up shows it again, /clear begins a new conversation."
_HINT = "Ctrl-D or /exit leaves; /help lists the rest."
Item = TypeVar("Item")


def talk(load: Callable[[], LoadedModel], settings: Settings) -> int:
    """Hold a conversation on standard input and output; give the exit code.

    load: makes the model; called in the thread that will use it.
    Raises what `load` raises, KeyboardInterrupt where that is interrupted, and UsageError for
    settings that the model cannot follow or standard input that is not text.
    """
    terminal = Terminal()
    reader = _reader(terminal)
    with reader.open():
        conversations = _Talk(terminal, reader)
        try:
            code = conversations.run(load, settings)
        except KeyboardInterrupt:
            code = INTERRUPTED
    conversations.end(code)
    return code


def _reader(terminal: Terminal) -> Reader:
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    is_seen = terminal.is_terminal or (sys.stderr is not None and sys.stderr.isatty())
    if is_typed and is_seen and not terminal.is_dumb:
        return Editor(terminal, EntryHistory(data_dir() / "chat-history"))
    return LineReader(terminal, is_interactive=is_typed)


class _Talk:
    """One conversation after the other, until somebody leaves."""

    def __init__(self, terminal: Terminal, reader: Reader) -> None:
        self._terminal = terminal
        self._reader = reader
        self._worker = Worker()
        self._told_problem = False
        self._signalled = False
        self._exit_code = 0

    def run(self, load: Callable[[], LoadedModel], settings: Settings) -> int:
        with self._signals():
            conversation: Conversation | None = self._open(load, settings)
            while conversation is not None:
                self._tell_problem()
                conversation = self._turn(conversation)
        return self._exit_code

    def end(self, code: int) -> None:
        """End the process here if the model is busy: its exit would wait for the pass to end."""
        self._worker.cancel()
        if not self._worker.wait_idle(PATIENCE_S if code == 0 else 0):
            sys.stderr.flush()
            os._exit(code)

    def _open(self, load: Callable[[], LoadedModel], settings: Settings) -> Conversation:
        job = self._worker.start(lambda cancelled: [load()])
        loaded = [model for model in self._follow(job, patience_s=0) if model is not None]
        if not loaded:
            raise KeyboardInterrupt
        conversation = Conversation(loaded[0], settings)
        for line in opening(conversation, is_interactive=self._reader.is_interactive):
            self._terminal.line(line, self._terminal.theme.dim)
        self._terminal.spacing()
        return conversation

    def _turn(self, conversation: Conversation) -> Conversation | None:
        """Read and answer once; the conversation that goes on, None to leave."""
        try:
            entry = self._reader.read()
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not self._reader.is_interactive:
                raise
            self._terminal.line(_HINT, self._terminal.theme.dim)
            return conversation
        self._signalled = False
        try:
            found = find_command(entry)
            if found is None:
                self._say(conversation, entry)
                return conversation
            command, argument = found
            outcome = command.run(conversation, argument)
        except MtplxError as error:
            self._fail(error)
            return conversation
        for line in outcome.lines:
            self._terminal.line(line, indent=outcome.indent)
        if outcome.lines:
            self._terminal.spacing()
        return outcome.conversation

    def _say(self, conversation: Conversation, entry: Entry) -> None:
        text = message_of(entry)
        if not text.strip():
            return
        job = self._worker.start(conversation.begin(text))
        self._terminal.spacing()
        try:
            shown, result = self._show(job)
        except MtplxError as error:
            conversation.take_back()
            self._fail(error, _TAKEN_BACK if self._reader.is_interactive else "")
            return
        conversation.end(shown)
        self._terminal.line(closing(conversation, shown, result), self._terminal.theme.dim)
        self._terminal.line()

    def _show(self, job: Job[TextEvent]) -> tuple[str, Result | None]:
        """Show a reply while it comes; its text as far as it went, and its figures if it ended."""
        renderer = self._terminal.renderer()
        shown, result, is_passing = "", None, False
        try:
            for event in self._follow(job):
                if event is None:
                    if not shown and not is_passing:
                        is_passing = self._terminal.passing("reading ...")
                    continue
                if is_passing and event.text:
                    is_passing = self._terminal.passing("")
                shown += event.text
                result = event.result or result
                self._terminal.write(renderer.feed(event.text))
        finally:
            if is_passing:
                self._terminal.passing("")
            self._terminal.write(renderer.finish())
        if shown:
            self._terminal.spacing()
        return shown, result

    def _follow(self, job: Job[Item], patience_s: float = PATIENCE_S) -> Iterator[Item | None]:
        """The results of a job as they come, and None where there was none for a while.

        Ctrl-C cancels the job, which may then give its last results, but is not waited for long.
        """
        deadline = None
        while True:
            has_ended = job.has_ended
            yield from job.take()
            if has_ended:
                job.check()
                return
            left_s = SILENCE_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return
            watched = [self._worker.fileno(), *self._reader.watched()]
            ready, _, _ = select.select(watched, [], [], left_s)
            self._worker.heard()
            has_keys = any(file in ready for file in watched[1:])
            is_interrupted = (has_keys and self._reader.was_interrupted()) or self._signalled
            if is_interrupted and deadline is None:
                job.cancel()
                deadline = time.monotonic() + patience_s
            elif not ready:
                yield None

    def _tell_problem(self) -> None:
        if self._reader.problem is not None and not self._told_problem:
            self._told_problem = True
            self._terminal.error(f"What you enter is not remembered. {self._reader.problem}")

    def _fail(self, error: MtplxError, more: str = "") -> None:
        self._terminal.error(f"{error} {more}".rstrip())
        self._terminal.spacing()
        if not self._reader.is_interactive:
            self._exit_code = self._exit_code or error.exit_code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Have SIGINT stop a reply, and do nothing where there is none."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self._signalled = True
            self._worker.wake()

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
