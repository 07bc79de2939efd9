"""What a conversion has finished, in the folder that it works in."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtplx.conversion.tensor_file import sha256
from mtplx.files import accessing, write_atomically

RECORD = "conversion.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What is converted, and how. source: the checkpoint's fingerprint; plan: that of the files."""

    source: str
    config: str
    plan: str
    options: dict[str, Any]


@dataclass(slots=True)
class Record:
    """Files that are whole, by name: the SHA-256 of each."""

    task: Task
    written: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Put it into the folder. Raises FileAccessError."""
        content = {"version": _VERSION, "task": asdict(self.task), "written": self.written}
        write_atomically(folder / RECORD, json.dumps(content, indent=1).encode())


def read_record(folder: Path) -> Record | None:
    """What is there of a conversion that was stopped; None where there is none.

    A record that cannot be understood counts as none. Raises FileAccessError.
    """
    file = folder / RECORD
    if not file.is_file():
        return None
    with accessing("read", file):
        text = file.read_bytes()
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            return None
        return Record(Task(**content["task"]), dict(content["written"]))
    except (ValueError, KeyError, TypeError):
        return None


def forget_damaged(record: Record, folder: Path) -> list[str]:
    """Take out of the record what is not in the folder as it was written; gives those names.

    Reads every finished file. Raises FileAccessError.
    """
    damaged = [name for name, digest in record.written.items() if _digest(folder / name) != digest]
    for name in damaged:
        del record.written[name]
    return damaged


def differing(record: Record, task: Task) -> list[str]:
    """In what a recorded conversion is another one."""
    pairs = zip(asdict(record.task).items(), asdict(task).values(), strict=True)
    return [name for (name, one), other in pairs if one != other]


def _digest(file: Path) -> str | None:
    if not file.is_file():
        return None
    with accessing("read", file):
        return sha256(file)
