"""What Tab completes: commands, what follows them, and paths."""

from collections.abc import Callable, Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from mtplx.chat.command import Desk
from mtplx.chat.commands import COMMANDS


class CommandCompleter(Completer):
    """desk: asked for what commands work on now."""

    def __init__(self, desk: Callable[[], Desk]) -> None:
        self._desk = desk
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return
        name, space, argument = text[1:].partition(" ")
        if not space:
            yield from _matching(name, [f"{known} " for known in COMMANDS])
            return
        command = COMMANDS.get(name)
        if command is None or not command.argument:
            return
        if command.choices is None:
            yield from self._paths.get_completions(Document(argument), event)
        elif name == "export" and " " in argument:
            yield from self._paths.get_completions(Document(argument.partition(" ")[2]), event)
        else:
            yield from _matching(argument, command.choices(self._desk()))


def _matching(begun: str, names: Iterable[str]) -> Iterable[Completion]:
    for name in names:
        if name.startswith(begun):
            yield Completion(name, start_position=-len(begun))
