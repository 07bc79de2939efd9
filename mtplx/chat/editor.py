"""Typing at a terminal: lines that can be edited, pasted text as one message, keys in a reply.

The terminal stays in raw mode from beginning to end. What is typed while a reply runs is so neither
shown in the middle of it nor lost, and Ctrl-C is a key like others: it does not reach the `make` or
the script that this process was started by.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from mtplx.chat.entry import Entry, opens_quotes, unquoted
from mtplx.chat.external import edited
from mtplx.chat.guard import guarded_terminal
from mtplx.chat.history import EntryHistory
from mtplx.chat.reader import Background, Pressed
from mtplx.chat.terminal import Terminal
from mtplx.errors import MtplxError

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"  # whether pasted text comes in brackets
_CURSOR_ON = "\x1b[?25h"  # what was interrupted may have hidden it
_PROMPT = "> "
MAX_ECHOED = 8  # lines
MAX_ECHOED_LENGTH = 1000  # characters of a line
_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that were no UTF-8


class _EditorWantedError(Exception):
    """Somebody pressed the key for the external editor."""


class Editor:
    """Reads from the terminal that is standard input (reader.Reader); within `open`."""

    is_interactive = True
    is_live = True

    def __init__(self, terminal: Terminal, history: EntryHistory, completer: Completer) -> None:
        self._terminal = terminal
        self._history = history
        self._input = Vt100Input(sys.stdin)
        self._is_literal = False
        self._as_pasted = ""  # the text as the last paste left it
        self._stream = sys.stdout if terminal.is_terminal else sys.stderr
        paints = terminal.theme.paints
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            multiline=True,
            prompt_continuation=" " * len(_PROMPT),
            history=history,
            key_bindings=self._bindings(),
            completer=completer,
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_suspend=True,
            reserve_space_for_menu=0,
            erase_when_done=True,  # `_echo` shows what was entered
            color_depth=None if paints else ColorDepth.DEPTH_1_BIT,
            style=Style([("bottom-toolbar", "noreverse dim" if paints else "noreverse")]),
            input=self._input,
            output=_output(self._stream),
        )
        self._session.default_buffer.on_text_changed += self._forget_paste

    @property
    def problem(self) -> MtplxError | None:
        return self._history.problem

    @contextmanager
    def open(self) -> Iterator[None]:
        with guarded_terminal(self._input.fileno()), self._input.raw_mode():
            self._write(_PASTE_ON)
            try:
                yield
            finally:
                self._write(_PASTE_OFF + _CURSOR_ON)

    def read(self, background: Background, *, draft: str = "", edits: bool = False) -> Entry:
        self._is_literal, self._as_pasted = bool(draft), draft
        if edits:
            draft = self._edited(draft)
        while True:
            try:
                text = self._prompt(background, draft)
                break
            except _EditorWantedError:
                draft = self._edited(self._session.default_buffer.text)
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    return Entry("")
                raise
        self._echo(text)
        clean = _SURROGATE.sub("\ufffd", text)
        return Entry(clean, is_literal=True) if self._is_literal else unquoted(clean)

    def watched(self) -> list[int]:
        return [] if self._input.closed else [self._input.fileno()]

    def pressed(self) -> Pressed:
        keys = self._input.read_keys()
        names = [press.key for press in keys]
        if Keys.ControlZ in names:
            self._suspend()
        stops = [place for place, name in enumerate(names, start=1) if name == Keys.ControlC]
        kept = keys[max(stops, default=0) :]  # what was typed before a Ctrl-C goes with it
        store_typeahead(self._input, [press for press in kept if press.key != Keys.ControlO])
        return Pressed(
            interrupt=bool(stops) or self._input.closed,
            fold=names.count(Keys.ControlO) % 2 == 1,
        )

    def _prompt(self, background: Background, draft: str) -> str:
        """What the line holds at Enter; it is heard meanwhile what goes on."""

        def begin() -> None:
            app = get_app()
            app.layout.focus(DEFAULT_BUFFER)  # a search that was interrupted has left it
            assert app.loop is not None
            app.loop.add_reader(background.fileno, lambda: _hear(background.hear))

        self._session.bottom_toolbar = lambda: _toolbar(background.status())
        try:
            # Its own handler would fail on a signal that comes while the prompt ends.
            return self._session.prompt(default=draft, pre_run=begin, handle_sigint=False)
        finally:
            self._write(_PASTE_ON)  # the prompt has switched it off

    def _edited(self, text: str) -> str:
        """A text after somebody has had it in an editor of theirs; then it is no command."""
        self._write(_PASTE_OFF)
        with self._input.cooked_mode():
            text, problem = edited(text)
        self._write(_PASTE_ON)
        if problem is not None:
            self._terminal.error(str(problem))
        self._is_literal, self._as_pasted = True, text
        return text

    def _echo(self, text: str) -> None:
        """Leave what was entered on the screen, of a long text the beginning."""
        lines = text.split("\n")
        num_more = len(lines) - MAX_ECHOED
        shown = lines if num_more <= 1 else [*lines[:MAX_ECHOED], f"... {num_more:,} more lines"]
        if not text.strip() or not self._terminal.is_terminal:
            return
        for place, line in enumerate(shown):
            cut = line if len(line) <= MAX_ECHOED_LENGTH else f"{line[:MAX_ECHOED_LENGTH]} ..."
            self._terminal.line(("  " if place else _PROMPT) + cut, indent=len(_PROMPT))

    def _suspend(self) -> None:
        self._write(_PASTE_OFF)
        self._terminal.status.close()
        with self._input.cooked_mode():
            os.kill(0, signal.SIGTSTP)  # with whatever started this process
        self._write(_PASTE_ON)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal has gone
            self._stream.write(text)
            self._stream.flush()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        focused = has_focus(DEFAULT_BUFFER)
        bindings.add(Keys.ControlM, filter=focused)(self._enter)
        bindings.add(Keys.Escape, Keys.ControlM, filter=focused)(_new_line)
        bindings.add(Keys.BracketedPaste, filter=focused)(self._paste)
        bindings.add(Keys.ControlX, Keys.ControlE, filter=focused)(_want_editor)
        bindings.add(Keys.ControlO, filter=focused)(_do_nothing)
        return bindings

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        before = buffer.document.text_before_cursor
        if before.endswith("\\") and buffer.text != self._as_pasted:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        if opens_quotes(buffer.text) and not self._is_literal:
            buffer.insert_text("\n")
            return
        self._history.is_literal = self._is_literal
        buffer.validate_and_handle()

    def _paste(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        self._is_literal |= buffer.cursor_position == 0
        # Terminals send the line ends of pasted text as carriage returns.
        buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))
        self._as_pasted = buffer.text

    def _forget_paste(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._is_literal, self._as_pasted = False, ""


def _hear(hear: Callable[[], Callable[[], None] | None]) -> None:
    """Have news written above the line; what they raise ends the prompt."""
    app = get_app()
    try:
        write = hear()
    except (Exception, KeyboardInterrupt) as error:  # raised again where the prompt was asked for
        if not app.is_done:
            app.exit(exception=error)
        return
    if write is not None:
        run_in_terminal(write)
    app.invalidate()


def _toolbar(text: str) -> StyleAndTextTuples | None:
    return [("", text)] if text else None


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _want_editor(event: KeyPressEvent) -> None:
    event.app.exit(exception=_EditorWantedError())


def _do_nothing(event: KeyPressEvent) -> None:
    pass


class _Output(Vt100_Output):
    """Never asks where the cursor is, which waits for an answer that some terminals do not give."""

    def get_rows_below_cursor_position(self) -> int:
        return 1  # there is always the line of the cursor


def _output(stream: object) -> Vt100_Output:
    output = _Output.from_pty(stream, term=os.environ.get("TERM"))  # type: ignore[arg-type]
    output.enable_cpr = False
    return output
