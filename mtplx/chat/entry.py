"""What somebody entered, and whether its beginning can be that of a command."""

from dataclasses import dataclass

QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Entry:
    """is_literal: a message whatever it begins with, because it was pasted, quoted or edited."""

    text: str
    is_literal: bool = False


def opens_quotes(text: str) -> bool:
    """Whether a text begins with three quotes and does not end with three others."""
    return text.startswith(QUOTES) and not _is_closed(text)


def unquoted(text: str) -> Entry:
    """A typed text as an entry: what is between three quotes is a message to the character.

    A line end next to the quotes is not part of it.
    """
    if not (text.startswith(QUOTES) and _is_closed(text)):
        return Entry(text)
    inner = text.rstrip()[len(QUOTES) : -len(QUOTES)]
    return Entry(inner.removeprefix("\n").removesuffix("\n"), is_literal=True)


def _is_closed(text: str) -> bool:
    return len(text.rstrip()) >= 2 * len(QUOTES) and text.rstrip().endswith(QUOTES)
