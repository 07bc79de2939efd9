"""What verbs print: results on standard output, everything said about them on standard error."""

import io
import json
import os
import sys
from typing import TextIO

from mtplx.errors import FileAccessError


def prepare_stdout() -> None:
    """Let standard output take any character: UTF-8 in files and pipes, in a terminal its own
    encoding with question marks for what that lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="strict")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody is looking. A closed stream is None."""
    return stream is not None and stream.isatty()


def write(text: str) -> None:
    """Text on standard output at once, with nothing added; made safe where a terminal shows it.

    Raises BrokenPipeError where the reader has gone and FileAccessError where it cannot be written.
    """
    from mtplx.text.safe import printable

    if sys.stdout is None:
        raise FileAccessError("Standard output is closed, so there is nowhere to write to.")
    shown = printable(text) if sys.stdout.isatty() else text
    try:
        sys.stdout.write(shown)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        reason = error.strerror or str(error)
        raise FileAccessError(f"Cannot write to standard output: {reason}.") from error


def write_json(value: object) -> None:
    """One JSON object on one line of standard output. Raises what `write` raises."""
    write(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str) + "\n")


def notice(text: str) -> None:
    """A line on standard error."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """An error as one line, whatever the text holds."""
    from mtplx.text.safe import printable

    notice(f"mtplx: {printable(' '.join(text.split()))}")


def flush() -> None:
    """Everything printed so far is out."""
    if sys.stdout is not None:
        write("")


def abandon_stdout() -> None:
    """Let the interpreter end without another attempt at what cannot be written."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
