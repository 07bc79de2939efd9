"""The terminal conversation itself: read an entry, run a command or show a reply, and again."""

import os
import signal
import sys
from collections.abc import Callable

from mtplx.chat.answer import Answer
from mtplx.chat.command import Command, Desk, Next, Outcome
from mtplx.chat.commands import find_command, message_of
from mtplx.chat.entry import Entry
from mtplx.chat.follow import PATIENCE_S, Signals, Watch
from mtplx.chat.opening import Openings, Start
from mtplx.chat.reader import Background, LeaveError, LineReader, Reader
from mtplx.chat.report import closing, last_turn, model_name, opening
from mtplx.chat.session import Conversation, Reply
from mtplx.chat.status import Pace, status_text
from mtplx.chat.terminal import Terminal
from mtplx.chat.worker import Worker
from mtplx.errors import MtplxError
from mtplx.paths import data_dir

INTERRUPTED = 130  # exit code, as a shell has it
_SIGNALLED = 128  # added to a signal's number
_HINT = "Ctrl-D or /exit leaves; /help lists the rest."
_NOT_DONE = "Not done, the model is not there yet; Up shows it again."
_TAKEN_BACK = "Your message was taken back; Up shows it again."
_STAYS = "The reply before stays."


def talk(start: Start) -> int:
    """Hold a conversation on standard input and output; give the exit code.

    Where somebody types, the model is loaded while they do. Raises what loading it raises, and
    UsageError for settings that the model cannot follow or standard input that is not text.
    """
    terminal = Terminal()
    conversations = _Talk(terminal, start)
    with conversations.reader.open():
        worker = Worker()
        try:
            code = conversations.run(worker)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except LeaveError as asked:
            code = _SIGNALLED + asked.number
        if conversations.reader.is_interactive:
            # The terminal is about to make a signal of Ctrl-C again: too late to stop anything.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.cancel()
    if terminal.has_gone or not worker.wait_idle(PATIENCE_S if code == 0 else 0):
        # An exit in order would wait for a pass of the model, or fail to flush what nobody sees.
        sys.stderr.flush()
        os._exit(code)
    return code


class _Talk:
    """One conversation after the other, until somebody leaves. To be used within reader.open()."""

    def __init__(self, terminal: Terminal, start: Start) -> None:
        self._terminal = terminal
        self._start = start
        self._openings: Openings | None = None
        self.reader = self._make_reader()
        self._pace = Pace()  # of the last reply
        self._outcome = Outcome()  # of the last command
        self._told: set[str] = set()
        self._exit_code = 0

    def run(self, worker: Worker) -> int:
        keeps = self._start.keeps
        self._signals = Signals(worker.wake)
        self._watch = Watch(worker, self.reader, self._signals)
        self._openings = openings = Openings(
            self._start,
            worker,
            is_live=self.reader.is_live,
            keeps=self.reader.is_interactive if keeps is None else keeps,
        )
        with self._signals.installed():
            name = model_name(self._start.first.model)
            more = " · /help lists the commands" if self.reader.is_interactive else ""
            self._terminal.line(f"{name}{more}", self._terminal.theme.dim)
            try:
                openings.open(self._start.first)
                if not self.reader.is_live:
                    self._await_model()
                while self._turn():
                    self._tell_problems()
            finally:
                if openings.current is not None:
                    openings.current.close()
        return self._exit_code

    def _make_reader(self) -> Reader:
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        terminal = self._terminal
        is_seen = terminal.is_terminal or (sys.stderr is not None and sys.stderr.isatty())
        if not (is_typed and is_seen) or terminal.is_dumb:
            return LineReader(terminal, is_interactive=is_typed)
        from mtplx.chat.completion import CommandCompleter
        from mtplx.chat.editor import Editor
        from mtplx.chat.history import EntryHistory

        history = EntryHistory(data_dir() / "chat-history")
        return Editor(terminal, history, CommandCompleter(self._desk))

    def _desk(self) -> Desk:
        current = self._openings.current if self._openings is not None else None
        return Desk(self._start.archive, current)

    def _turn(self) -> bool:
        """Read and answer once; whether there is to be another turn."""
        outcome, self._outcome = self._outcome, Outcome()
        background = Background(self._status, self._watch.worker.fileno(), self._hear)
        self._signals.interrupted = False
        try:
            entry = self.reader.read(background, draft=outcome.draft, edits=outcome.edits)
        except EOFError:
            return False
        except KeyboardInterrupt:
            if not self.reader.is_interactive:
                raise
            self._terminal.line(_HINT, self._terminal.theme.dim)
            return True
        self._signals.check()
        self._signals.interrupted = False
        try:
            found = find_command(entry)
            if found is not None:
                return self._run(*found)
            self._say(entry)
        except MtplxError as error:
            self._fail(error)
        except KeyboardInterrupt:  # while the model was waited for
            if not self.reader.is_interactive:
                raise
            self._terminal.line(_NOT_DONE, self._terminal.theme.dim)
        return not self._terminal.has_gone

    def _run(self, command: Command, argument: str) -> bool:
        if command.needs_model:
            self._await_model()
        outcome = self._outcome = command.run(self._desk(), argument)
        assert self._openings is not None
        if outcome.conversation is not None:
            self._openings.current = outcome.conversation
            self._pace = Pace()
        for line in outcome.lines:
            self._terminal.line(line, indent=outcome.indent)
        if outcome.lines and outcome.next is not Next.ANSWER:
            self._terminal.spacing()
        if outcome.opening is not None:
            self._openings.open(outcome.opening)
            if self._openings.can_settle or not self.reader.is_live:
                self._await_model()
        if outcome.next is Next.ANSWER:
            self._answer(self._current, self._current.begin_again)
        return outcome.next is not Next.LEAVE

    def _say(self, entry: Entry) -> None:
        text = message_of(entry)
        if not text.strip():
            return
        self._await_model()
        self._answer(self._current, lambda: self._current.begin(text))

    def _answer(self, conversation: Conversation, begin: Callable[[], Reply]) -> None:
        """Show a reply and take it into the conversation, which ends as if it had never begun
        where there is not a word of it."""
        answer = Answer(conversation, self._terminal)
        reply = begin()
        is_again = conversation.transcript.replaced is not None
        self._terminal.spacing()
        try:
            answer.show(reply, self._watch)
        except MtplxError as error:
            self._keep(answer)
            lost = "" if not self.reader.is_interactive else _STAYS if is_again else _TAKEN_BACK
            self._fail(error, lost if answer.said is None else "")
            return
        self._keep(answer)
        self._pace = answer.pace
        self._signals.check()
        if answer.said is not None:
            self._terminal.spacing()
        said = answer.said.content + answer.said.reasoning if answer.said is not None else ""
        told = closing(conversation, said, answer.result, is_again=is_again)
        self._terminal.line(told, self._terminal.theme.dim)
        self._terminal.line()

    def _keep(self, answer: Answer) -> None:
        said, result = answer.said, answer.result
        finish = result.finish_reason if result is not None else "interrupted"
        if said is not None:
            answer.conversation.end(said.content, said.reasoning, finish)
        elif result is not None and finish != "interrupted":
            answer.conversation.end("", "", finish)  # the model had nothing to say
        else:
            answer.conversation.give_up()

    # What goes on in the background: the model, signals.

    @property
    def _current(self) -> Conversation:
        assert self._openings is not None
        assert self._openings.current is not None
        return self._openings.current

    def _await_model(self) -> None:
        """Have a conversation. Raises KeyboardInterrupt, LeaveError, and why there is none."""
        openings = self._openings
        assert openings is not None
        while openings.loading is not None:
            loading = openings.loading
            if not openings.can_settle:
                try:
                    for _ in self._watch.follow(loading.job, cancels=False):
                        self._terminal.status.show(loading.doing)
                except MtplxError:
                    pass  # told where it is settled
                finally:
                    self._terminal.status.close()
                self._signals.check()
                if not openings.can_settle:
                    raise KeyboardInterrupt
            self._settle()()

    def _settle(self) -> Callable[[], None]:
        """Open the conversation whose model has come; gives what tells about it.

        Raises the error where there is none to go on with.
        """
        openings = self._openings
        assert openings is not None
        try:
            lines = openings.settle()
        except MtplxError as error:
            if openings.current is None and openings.loading is None:
                raise
            failure = error
            return lambda: self._fail(failure)
        conversation = self._current
        return lambda: self._introduce(conversation, lines)

    def _introduce(self, conversation: Conversation, lines: list[str]) -> None:
        for line in [*opening(conversation), *lines]:
            self._terminal.line(line, self._terminal.theme.dim)
        self._terminal.spacing()
        if self.reader.is_interactive and conversation.messages:
            self._show_last_turn(conversation)

    def _show_last_turn(self, conversation: Conversation) -> None:
        said, reply = last_turn(conversation)
        self._terminal.line(f"> {said}", indent=2)
        self._terminal.spacing()
        renderer = self._terminal.renderer()
        self._terminal.write(renderer.feed(reply) + renderer.finish())
        self._terminal.spacing()

    def _hear(self) -> Callable[[], None] | None:
        """What is to be written above the line that is being typed, if anything."""
        self._watch.worker.heard()
        self._signals.check()
        if self._signals.interrupted:
            raise KeyboardInterrupt
        assert self._openings is not None
        return self._settle() if self._openings.can_settle else None

    def _status(self) -> str:
        openings, columns = self._openings, self._terminal.columns() - 1
        assert openings is not None
        if openings.loading is not None:
            return openings.loading.doing
        conversation = self._current
        state = conversation.state
        num_cached = len(state.token_ids) if state is not None else 0
        return status_text(conversation, self._pace, columns, num_cached=num_cached)

    def _tell_problems(self) -> None:
        """What cannot be kept, once each."""
        conversation = self._openings.current if self._openings is not None else None
        problems = {
            "What you enter is not remembered.": self.reader.problem,
            "This conversation is not kept.": conversation.problem if conversation else None,
        }
        for what, problem in problems.items():
            if problem is not None and what not in self._told:
                self._told.add(what)
                self._terminal.error(f"{what} {problem}")

    def _fail(self, error: MtplxError, more: str = "") -> None:
        self._terminal.error(f"{error} {more}".rstrip())
        self._terminal.spacing()
        if not self.reader.is_interactive:
            self._exit_code = self._exit_code or error.exit_code
