"""Paths as people type them, which may be anything at all."""

from pathlib import Path

from mtplx.errors import UsageError


def as_typed(text: str) -> Path:
    """The path with its tilde expanded; that of somebody who has no home here stays as it is.

    Raises UsageError for a zero byte, which no path can have.
    """
    if "\0" in text:
        raise UsageError(f"{text!r} is no path: it holds a zero byte.")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~ of somebody who has no home
        return Path(text)


def existing(text: str) -> Path | None:
    """The path if something that can be looked at is there; None for what cannot be a path."""
    try:
        path = as_typed(text)
        path.stat()
    except (UsageError, OSError, ValueError):  # a name that is too long, no right to look
        return None
    return path
