"""Typing at a terminal: lines that can be edited, pasted text as one message, keys in a reply.

The terminal stays in raw mode from beginning to end. What is typed while a reply runs is so neither
shown in the middle of it nor lost, and Ctrl-C is a key like others: it does not reach the `make` or
the script that this process was started by.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from mtplx.chat.commands import Entry
from mtplx.chat.guard import guarded_terminal
from mtplx.chat.history import EntryHistory
from mtplx.chat.terminal import Terminal
from mtplx.errors import MtplxError

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"  # whether pasted text comes in brackets
_CURSOR_ON = "\x1b[?25h"  # a progress bar that was left in the middle has hidden it
_PROMPT = "> "
MAX_ECHOED = 8  # lines
MAX_ECHOED_LENGTH = 1000  # characters of a line
_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that were no UTF-8


class Editor:
    """Reads from the terminal that is standard input (reader.Reader); within `open`."""

    is_interactive = True

    def __init__(self, terminal: Terminal, history: EntryHistory) -> None:
        self._terminal = terminal
        self._history = history
        self._input = Vt100Input(sys.stdin)
        self._starts_pasted = False
        self._as_pasted = ""  # the text as the last paste left it
        self._stream = sys.stdout if terminal.is_terminal else sys.stderr
        paints = terminal.theme.paints
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            multiline=True,
            prompt_continuation=" " * len(_PROMPT),
            history=history,
            key_bindings=self._bindings(),
            enable_suspend=True,
            reserve_space_for_menu=0,
            erase_when_done=True,  # `_echo` shows what was entered
            color_depth=None if paints else ColorDepth.DEPTH_1_BIT,
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

    def read(self) -> Entry:
        self._starts_pasted, self._as_pasted = False, ""
        try:
            text = self._session.prompt()
        except KeyboardInterrupt:
            if self._session.default_buffer.text:
                return Entry("")
            raise
        finally:
            self._write(_PASTE_ON)  # the prompt has switched it off
        self._echo(text)
        return Entry(_SURROGATE.sub("\ufffd", text), self._starts_pasted)

    def watched(self) -> list[int]:
        return [] if self._input.closed else [self._input.fileno()]

    def was_interrupted(self) -> bool:
        keys = self._input.read_keys()
        names = [press.key for press in keys]
        if Keys.ControlZ in names:
            self._suspend()
        if self._input.closed or Keys.ControlC in names:
            return True
        store_typeahead(self._input, keys)
        return False

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
        with self._input.cooked_mode():
            os.kill(0, signal.SIGTSTP)  # with whatever started this process
        self._write(_PASTE_ON)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        focused = has_focus(DEFAULT_BUFFER)
        bindings.add(Keys.ControlM, filter=focused)(self._enter)
        bindings.add(Keys.Escape, Keys.ControlM, filter=focused)(_new_line)
        bindings.add(Keys.BracketedPaste, filter=focused)(self._paste)
        return bindings

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        before = buffer.document.text_before_cursor
        if before.endswith("\\") and buffer.text != self._as_pasted:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        self._history.is_pasted = self._starts_pasted
        buffer.validate_and_handle()

    def _paste(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        self._starts_pasted |= buffer.cursor_position == 0
        # Terminals send the line ends of pasted text as carriage returns.
        buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))
        self._as_pasted = buffer.text

    def _forget_paste(self, buffer: Buffer) -> None:
        if not buffer.text:
            self._starts_pasted, self._as_pasted = False, ""


def _new_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _output(stream: object) -> Vt100_Output:
    output = Vt100_Output.from_pty(stream, term=os.environ.get("TERM"))  # type: ignore[arg-type]
    # Asking where the cursor is waits for an answer, and warns of terminals that give none.
    output.enable_cpr = False
    return output
