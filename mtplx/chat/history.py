"""What was entered in earlier conversations, for the keys that bring it back."""

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from prompt_toolkit.history import FileHistory

from mtplx.chat.entry import QUOTES
from mtplx.errors import FileAccessError
from mtplx.files import access_error
from mtplx.paths import ensure_dir


class EntryHistory(FileHistory):
    """One file, to which each entry is appended in one piece, so that no crash can break it.

    problem: why it is not kept in the file, if so.
    is_literal: whether the entry about to be appended is a message whatever it begins with.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.problem: FileAccessError | None = None
        self.is_literal = False
        try:
            ensure_dir(path.parent)
            self._append(b"")
        except FileAccessError as error:
            self.problem = error
        except OSError as error:
            self.problem = access_error("write", path, error)

    def load_history_strings(self) -> Iterable[str]:
        return [] if self.problem else super().load_history_strings()

    def append_string(self, string: str) -> None:
        # Brought back, it counts as typed, and has to mean the same.
        if self.is_literal and string.startswith(QUOTES):
            string = f"{QUOTES}\n{string}\n{QUOTES}"
        elif self.is_literal and string.startswith("/") and "\n" not in string:
            string = f"/{string}"
        super().append_string(string)

    def store_string(self, string: str) -> None:
        if self.problem:
            return
        lines = "".join(f"+{line}\n" for line in string.split("\n"))
        try:
            self._append(f"\n# {datetime.now()}\n{lines}".encode("utf-8", "replace"))
        except OSError as error:  # a full disk must not end a conversation
            self.problem = access_error("write", Path(str(self.filename)), error)

    def _append(self, content: bytes) -> None:
        handle = os.open(self.filename, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, content)
        finally:
            os.close(handle)
