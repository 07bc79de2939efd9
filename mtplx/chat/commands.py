"""Commands: what a typed line that begins with a slash does.

Only a line somebody typed can be one. Text that was pasted, or that has several lines, is a
message whatever it begins with.
"""

import difflib

from mtplx.chat import archive_commands as archive
from mtplx.chat import file_commands as files
from mtplx.chat import setting_commands as settings
from mtplx.chat import turn_commands as turns
from mtplx.chat.command import Command, Desk, Outcome
from mtplx.chat.entry import Entry
from mtplx.chat.settings import WHEN_FULL, sampling_fields
from mtplx.draft_options import DRAFT_MODES
from mtplx.errors import UsageError
from mtplx.params import LAW_NAMES


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
    return entry.text.startswith("/") and not entry.is_literal and "\n" not in entry.text


def _unknown(name: str, text: str) -> str:
    near = _OTHER_NAMES.get(name)
    if near is None:
        near = next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)
    hint = f"Did you mean /{near}?" if near else "/help lists what there is."
    return (
        f"There is no command /{name}. {hint} "
        f"A message that begins with a slash is typed with two: /{text}"
    )


def _help(desk: Desk, argument: str) -> Outcome:
    rows = [(f"/{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS.values()]
    width = max(len(keys) for keys, _ in rows) + 1
    return Outcome([f"{keys:<{width}}{text}" for keys, text in [*rows, *_KEYS]], width)


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "", "show this", _help, needs_model=False),
        Command("clear", "", "begin a new conversation", archive.clear),
        Command("regen", "", "have the last message answered again", turns.regenerate),
        Command("undo", "", "take the last message and its reply back", turns.undo),
        Command("edit", "[TEXT]", "write a message in your editor", turns.edit, needs_model=False),
        Command("save", "[NAME]", "name this conversation, or say where it is", archive.save),
        Command(
            "load",
            "NAME",
            "go on with another conversation",
            archive.load,
            needs_model=False,
            choices=archive.saved_names,
        ),
        Command(
            "list",
            "",
            "show the conversations that were kept",
            archive.list_saved,
            needs_model=False,
        ),
        Command(
            "system",
            "[TEXT|off]",
            "set, show or remove what the model is told beforehand",
            settings.set_system,
            choices=lambda desk: ["off"],
        ),
        Command(
            "set",
            "[FIELD [VALUE]]",
            "show or change how tokens are chosen",
            settings.set_sampling,
            choices=lambda desk: sampling_fields(),
        ),
        Command(
            "depth",
            "[N|auto|off]",
            "how many tokens to draft per round",
            settings.set_depth,
            choices=lambda desk: ["auto", "off"],
        ),
        Command(
            "mtp",
            "[on|off|MODE]",
            "switch drafting, or how it is done",
            settings.set_mtp,
            choices=lambda desk: ["on", "off", *DRAFT_MODES],
        ),
        Command(
            "law",
            "[NAME]",
            "how drafted tokens are accepted",
            settings.set_law,
            choices=lambda desk: LAW_NAMES,
        ),
        Command(
            "think",
            "[on|off|hide]",
            "whether the model thinks first, and shows it",
            settings.set_thinking,
            choices=lambda desk: ["on", "off", "hide"],
        ),
        Command(
            "context",
            "[stop|drop|N|max]",
            "its size, and what to do when it is full",
            settings.set_context,
            choices=lambda desk: [*WHEN_FULL, "max"],
        ),
        Command("tokens", "", "show what the context holds", settings.show_usage),
        Command(
            "read",
            "FILE",
            "have a text file go with the next message",
            files.read_file,
            choices=None,
        ),
        Command("image", "FILE", "the same for an image", files.read_image, choices=None),
        Command(
            "export",
            "md|json [FILE]",
            "write the conversation to a file",
            files.export,
            choices=lambda desk: files.FORMATS,
        ),
        Command("stats", "", "show the figures of this conversation", turns.show_totals),
        Command("model", "[NAME]", "show the model, or go on with another", archive.show_model),
        Command("exit", "", "leave", archive.leave, needs_model=False),
    )
}
_OTHER_NAMES = {"quit": "exit", "bye": "exit", "q": "exit", "new": "clear", "retry": "regen"}
_KEYS = (
    ("//...", "a message that begins with a slash"),
    ('"""', "begins and ends a message of several lines"),
    ("Alt-Enter", "a new line; so does a backslash before Enter"),
    ("Ctrl-X Ctrl-E", "the line in your editor"),
    ("Ctrl-O", "fold or unfold what the model is thinking"),
    ("Ctrl-C", "stop a reply, or drop the line"),
    ("Ctrl-D", "leave"),
)
