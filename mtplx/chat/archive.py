"""Conversations on disk: a folder of files to which each record is appended in one piece.

A process that is killed loses nothing that it has appended; what a power cut leaves of a record
that was being written is told from the whole ones before it and left out. A file that cannot be
understood is never changed.
"""

import difflib
import fcntl
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mtplx.chat.transcript import Record, Transcript, opened, perform
from mtplx.chat.typed_path import existing
from mtplx.errors import FileAccessError, UsageError
from mtplx.files import access_error, accessing
from mtplx.paths import ensure_dir

_SUFFIX = ".jsonl"
_NAME = re.compile(r"(?![-.\s])[^\x00-\x1f\x7f/\\]{1,80}(?<!\s)")
_SYNCED = frozenset({"conversation", "user", "assistant"})  # what a power cut should not lose


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation that was read: what it holds, its file, and how much of that is whole.

    was_cut: whether behind the whole records there is a part of one.
    """

    transcript: Transcript
    path: Path
    num_bytes: int
    was_cut: bool


class ConversationFile:
    """A file that is open for appending, and locked, so that no two processes write to it."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if is_new else 0)
        self._handle = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            raise FileAccessError(
                f"The conversation {self.name} is open in another MTPLX. Leave that one first, or "
                "go on with another conversation."
            ) from error
        except OSError:  # some network file systems have no locks
            pass

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    def append(self, record: Record) -> None:
        """Add a record. Raises OSError."""
        at = datetime.now().astimezone().isoformat(timespec="seconds")
        line = json.dumps({**record, "at": at}, ensure_ascii=False) + "\n"
        content = line.encode("utf-8", "surrogatepass")
        if os.write(self._handle, content) != len(content):
            raise OSError(28, "No space left on device")
        if record.get("type") in _SYNCED:
            os.fsync(self._handle)

    def settle(self, num_bytes: int) -> None:
        """Have the file end with a line end behind so many bytes. Raises OSError."""
        os.ftruncate(self._handle, num_bytes)
        if os.pread(self._handle, 1, num_bytes - 1) != b"\n":
            os.write(self._handle, b"\n")

    def rename(self, path: Path) -> None:
        """Go on under another name. Raises FileExistsError and other OSErrors."""
        if path.exists():
            raise FileExistsError(path)
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._handle)


class Archive:
    """The conversations in a folder, which is made when the first one is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> ConversationFile:
        """A new file, named after the time. Raises FileAccessError."""
        ensure_dir(self.folder.parent)
        stem = datetime.now().strftime("%Y-%m-%d-%H%M%S")
        with accessing("write", self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)  # the names tell something too
            for number in range(1, 1000):
                name = stem if number == 1 else f"{stem}-{number}"
                with suppress(FileExistsError):
                    return ConversationFile(self.folder / (name + _SUFFIX), is_new=True)
        raise FileAccessError(f"Cannot find a free name for a conversation in {self.folder}.")

    def open(self, name: str) -> tuple[Saved, ConversationFile]:
        """A conversation to go on with. Raises what `find` and `read_conversation` raise."""
        path = self.find(name)
        with accessing("write", path):
            file = ConversationFile(path, is_new=False)
        try:
            saved = read_conversation(path)
            with accessing("write", path):
                file.settle(saved.num_bytes)
        except BaseException:
            file.close()
            raise
        return saved, file

    def find(self, name: str) -> Path:
        """The file of a conversation: its name, a beginning that no other has, or a path.

        Raises FileAccessError where there is none, with the nearest name.
        """
        path = existing(name) if name.endswith(_SUFFIX) else None
        if path is not None and path.is_file():
            return path
        names = self.names()
        if name in names:
            return self.path(name)
        begun = [known for known in names if known.startswith(name)]
        if name and len(begun) == 1:
            return self.path(begun[0])
        if begun and name:
            raise FileAccessError(f"Several conversations begin with {name!r}: {_some(begun)}.")
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "/list shows what there is."
        raise FileAccessError(f"There is no conversation {name!r}. {hint}")

    def latest(self) -> str:
        """The name of the conversation that was changed last. FileAccessError for none."""
        names = self.names()
        if not names:
            raise FileAccessError(
                f"There is no conversation to go on with in {self.folder}. Begin one with "
                "`mtplx chat`."
            )
        return names[0]

    def names(self) -> list[str]:
        """All of them, the one that was changed last first."""
        times = []
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.endswith(_SUFFIX):
                    with suppress(OSError):
                        times.append((entry.stat().st_mtime_ns, entry.name))
        return [name.removesuffix(_SUFFIX) for _, name in sorted(times, reverse=True)]

    def path(self, name: str) -> Path:
        """Where a conversation of this name is, or would be."""
        return self.folder / (name + _SUFFIX)

    def rename(self, file: ConversationFile, name: str) -> None:
        """Give a conversation a name. Raises UsageError and FileAccessError."""
        if not _NAME.fullmatch(name) or len(name.encode()) > 200:
            raise UsageError(
                f"{name!r} cannot be a name: it may have up to 80 characters, no slashes, and no "
                "dot, dash or space at its beginning."
            )
        path = self.path(name)
        if path == file.path:
            return
        try:
            file.rename(path)
        except FileExistsError as error:
            raise UsageError(
                f"There is a conversation {name!r} already. Choose another name, or go on with "
                f"that one: /load {name}"
            ) from error
        except OSError as error:
            raise access_error("write", path, error) from error


def read_conversation(path: Path) -> Saved:
    """What a conversation's file holds.

    Raises FileAccessError, naming the file and the line, where it cannot be understood.
    """
    with accessing("read", path):
        content = path.read_bytes()
    lines = content.split(b"\n")
    rest = lines.pop()  # what follows the last line end: nothing, unless it was cut there
    transcript: Transcript | None = None
    for number, line in enumerate([*lines, rest] if _is_record(rest) else lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise UsageError("It is no record.")
            if transcript is None:
                transcript = opened(record)
            else:
                perform(transcript, record)
        except (ValueError, RecursionError, UsageError) as error:
            raise _damaged(path, number, error) from error
    if transcript is None:
        raise _damaged(path, 1, UsageError("It holds no whole record."))
    num_bytes = len(content) - (0 if _is_record(rest) else len(rest))
    return Saved(transcript, path, num_bytes, was_cut=num_bytes != len(content))


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _damaged(path: Path, number: int, error: Exception) -> FileAccessError:
    reason = str(error) if isinstance(error, UsageError) else f"It is not JSON: {error}."
    return FileAccessError(
        f"{path}, line {number}: this is no conversation that can be read. {reason} The file is "
        "left as it is; mend that line in a copy, or begin a new conversation."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
