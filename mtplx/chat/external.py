"""A text in the editor that somebody has chosen."""

import os
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from mtplx.errors import FileAccessError, MtplxError

_USUAL = ("editor", "nano", "vi")


def edited(text: str) -> tuple[str, MtplxError | None]:
    """The text as an editor left it, or as it was, and why if it could not be edited.

    The editor is that of VISUAL or EDITOR, else the first usual one that there is.
    """
    try:
        handle, name = tempfile.mkstemp(prefix="mtplx-", suffix=".md")
    except OSError as error:
        return text, FileAccessError(f"Cannot make a file to edit: {error.strerror or error}.")
    path = Path(name)
    try:
        os.close(handle)
        path.write_text(text + "\n" if text else "", "utf-8", errors="replace")
        problem = _run(path)
        if problem is not None:
            return text, problem
        return path.read_bytes().decode("utf-8", "replace").removesuffix("\n"), None
    except OSError as error:
        return text, FileAccessError(f"Cannot edit {path}: {error.strerror or error}.")
    finally:
        with suppress(OSError):
            path.unlink()


def _run(path: Path) -> MtplxError | None:
    chosen = [os.environ.get("VISUAL"), os.environ.get("EDITOR")]
    for command in [*filter(None, chosen), *_USUAL]:
        try:
            code = subprocess.call([*shlex.split(command), str(path)])
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            return FileAccessError(f"Cannot start the editor {command!r}: {error}.")
        if code != 0:
            return FileAccessError(
                f"The editor {command!r} ended with {code}, so the text is as it was."
            )
        return None
    return FileAccessError("There is no editor here. Set EDITOR to the one that you use.")
