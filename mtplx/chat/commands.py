"""Commands: what a typed line that begins with a slash does.

Only a line somebody typed can be one. Text that was pasted, or that has several lines, is a
message whatever it begins with.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mtplx.chat.report import totals
from mtplx.chat.session import Conversation
from mtplx.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """What somebody entered. is_pasted: its beginning was not typed."""

    text: str
    is_pasted: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command leads to: the conversation that goes on, if one does, and lines to show.

    indent: the width of the column that the lines begin with.
    """

    conversation: Conversation | None
    lines: Sequence[str] = ()
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """argument: how the help shows what follows the name; empty where nothing may."""

    name: str
    argument: str
    help: str
    run: Callable[[Conversation, str], Outcome]


def find_command(entry: Entry) -> tuple[Command, str] | None:
    """The command of an entry and its argument; None for a message.

    Raises UsageError for a name that no command has, and for an argument where none is wanted.
    """
    if not may_be_command(entry) or entry.text.startswith("//"):
        return None
    name, _, argument = entry.text.removeprefix("/").partition(" ")
    command = COMMANDS.get(name.rstrip())
    if command is None:
        raise UsageError(_unknown(name, entry.text))
    if argument.strip() and not command.argument:
        raise UsageError(f"/{command.name} takes nothing after it, but there was {argument!r}.")
    return command, argument.strip()


def message_of(entry: Entry) -> str:
    """What an entry that is no command says: of two slashes at its beginning one is left out."""
    is_doubled = may_be_command(entry) and entry.text.startswith("//")
    return entry.text[1:] if is_doubled else entry.text


def may_be_command(entry: Entry) -> bool:
    """Whether the entry is one typed line with a slash at its beginning."""
    return entry.text.startswith("/") and not entry.is_pasted and "\n" not in entry.text


def _unknown(name: str, text: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists what there is."
    return (
        f"There is no command /{name}. {hint} "
        f"A message that begins with a slash is typed with two: /{text}"
    )


def _help(conversation: Conversation, argument: str) -> Outcome:
    rows = [(f"/{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS.values()]
    return Outcome(conversation, [f"{keys:<14} {text}" for keys, text in [*rows, *_KEYS]], 15)


def _clear(conversation: Conversation, argument: str) -> Outcome:
    return Outcome(conversation.fresh(), ["A new conversation."])


def _mtp(conversation: Conversation, argument: str) -> Outcome:
    if argument == "on" and not conversation.model.can_draft:
        raise UsageError(f"There is nothing to draft with: {conversation.model.no_head_reason}")
    if argument in ("on", "off"):
        conversation.settings = replace(conversation.settings, drafts=argument == "on")
    elif argument:
        raise UsageError(f"/mtp takes on or off, but there was {argument!r}.")
    depth = conversation.depth
    return Outcome(conversation, [f"MTP on, depth {depth}." if depth else "MTP off."])


def _stats(conversation: Conversation, argument: str) -> Outcome:
    return Outcome(conversation, totals(conversation), 11)


def _system(conversation: Conversation, argument: str) -> Outcome:
    if not argument:
        system = conversation.settings.system
        shown = (
            f"{system}\n(/system off removes it.)" if system else "Only the model's own, if any."
        )
        return Outcome(conversation, shown.split("\n"))
    system = None if argument == "off" else argument
    conversation.settings = replace(conversation.settings, system=system)
    return Outcome(conversation, [f"System prompt {'set' if system else 'removed'}."])


def _exit(conversation: Conversation, argument: str) -> Outcome:
    return Outcome(None)


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "", "show this", _help),
        Command("clear", "", "begin a new conversation", _clear),
        Command("mtp", "on|off", "switch drafting", _mtp),
        Command("stats", "", "show the figures of this conversation", _stats),
        Command(
            "system",
            "TEXT",
            "set what the model is told beforehand, show it, or remove it (off)",
            _system,
        ),
        Command("exit", "", "leave", _exit),
    )
}
_KEYS = (
    ("//...", "a message that begins with a slash"),
    ("Alt-Enter", "a new line; so does a backslash before Enter"),
    ("Ctrl-C", "stop a reply, or drop the line"),
    ("Ctrl-D", "leave"),
)
