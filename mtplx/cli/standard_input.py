"""A prompt from the command line, from standard input, or from both."""

import os
import select
import sys
from typing import BinaryIO

from mtplx.cli.output import notice
from mtplx.errors import FileAccessError, UsageError

MAX_BYTES = 64 << 20  # more than any context holds
PATIENCE_S = 2.0


def read_prompt(argument: str | None, *, keep_end: bool = False, piped: bool = True) -> str:
    """The prompt: the argument, then, after an empty line, what was piped in.

    argument: None or "-" leaves standard input alone. A terminal is only read for "-".
    keep_end: keep the line ends at the end of standard input, which are otherwise dropped.
    piped: whether standard input is taken where the argument does not ask for it.
    Raises UsageError where there is nothing, too much, or no UTF-8 text.
    """
    given = "" if argument in (None, "-") else _decoded(os.fsencode(argument or ""), "The prompt")
    taken = ""
    if sys.stdin is not None and (argument == "-" or (piped and not sys.stdin.isatty())):
        taken = _decoded(_read(sys.stdin.buffer), "Standard input")
        taken = taken if keep_end else taken.rstrip("\r\n")
    prompt = "\n\n".join(part for part in (given, taken) if part)
    if not prompt.strip():
        raise UsageError(
            'The prompt is empty. Give one, as in: mtplx generate "Why is the sky blue?" '
            "or pipe text in."
        )
    return prompt


def _read(source: BinaryIO) -> bytes:
    try:
        if not select.select([source], [], [], PATIENCE_S)[0]:
            notice("Waiting for standard input to end; `< /dev/null` leaves it out.")
        content = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileAccessError(f"Cannot read standard input: {error.strerror or error}.") from error
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"Standard input is over {MAX_BYTES >> 20} MB, more than any model's context. "
            "Give a part of it."
        )
    return content


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not UTF-8 text: byte 0x{content[error.start]:02x} at offset "
            f"{error.start} ({error.reason}). Convert it first, for example with iconv."
        ) from error
