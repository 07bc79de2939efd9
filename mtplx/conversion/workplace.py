"""Where a conversion is made, and how it takes the place that it is for.

It is made in OUT.converting beside OUT and renamed at the end, so that OUT is there whole or not at
all, and a conversion that was stopped is found by the next one.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mtplx.conversion.record import RECORD, Record, Task, differing, forget_damaged, read_record
from mtplx.errors import FileAccessError, UsageError
from mtplx.files import access_error, accessing

SUFFIX = ".converting"


def work_folder(out: Path) -> Path:
    """Where the conversion for `out` is made."""
    return out.with_name(out.name + SUFFIX)


def check_places(source: Path, out: Path, *, force: bool) -> None:
    """Raises UsageError and FileAccessError where `out` cannot be what is asked for."""
    real_source, real_out = source.resolve(), out.resolve()
    if real_out == real_source or real_out in real_source.parents:
        raise UsageError(f"{out} is or holds the source {source}. Give another folder.")
    if real_source in real_out.parents:
        raise UsageError(f"{out} is inside the source {source}. Give another folder.")
    if not out.parent.is_dir():
        raise FileAccessError(
            f"Cannot write {out}: there is no folder {out.parent}. Make it first."
        )
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise FileAccessError(f"Cannot write {out}: it is there already and is no folder.")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / "config.json").is_file():
        raise FileAccessError(
            f"Cannot write {out}: it holds files and is no checkpoint. Give another folder."
        )
    if not force:
        raise FileAccessError(
            f"Cannot write {out}: there is a checkpoint already. Give another folder, or replace "
            "that one with --force."
        )


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Have the folder for this process alone. Raises FileAccessError."""
    import fcntl

    with accessing("write", folder):
        folder.mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileAccessError(
            f"{folder} is in use: another `mtplx convert` works there. Wait for it, or stop it."
        ) from error
    except OSError:  # a network file system without locks
        pass
    try:
        yield
    finally:
        os.close(lock)


def resume(folder: Path, task: Task, *, force: bool) -> tuple[Record, list[str]]:
    """What is finished of this conversion in its work folder, and what was and is damaged.

    force: clear the folder where it holds something else. Raises FileAccessError.
    """
    record = read_record(folder)
    others = differing(record, task) if record is not None else ["what is in it"]
    if record is not None and not others:
        return record, forget_damaged(record, folder)
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    nothing_finished = record is not None and not record.written
    if visible and not nothing_finished and not force:
        raise FileAccessError(
            f"{folder} holds another conversion that was stopped ({', '.join(others)} differs). "
            "Remove that folder, or start over with --force."
        )
    with accessing("write", folder):
        for entry in visible:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        record = Record(task)
        record.save(folder)
    return record, []


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises FileAccessError where the disk has no room for so much more."""
    with accessing("write", folder):
        free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise FileAccessError(
            f"Cannot write {folder}: the conversion takes {num_bytes / 1e6:,.1f} MB more and "
            f"{free / 1e6:,.1f} MB are free. Free some space and run this again."
        )


def tidy(folder: Path, names: set[str]) -> None:
    """Remove what is neither of these names nor the record: what a stopped run was writing.

    Raises FileAccessError.
    """
    with accessing("write", folder):
        for entry in folder.iterdir():
            if entry.name not in names | {RECORD}:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def take_place(folder: Path, out: Path) -> None:
    """Let the finished folder become `out`, and what stood there go.

    Raises FileAccessError; what stood there then stands there still.
    """
    try:
        if not out.exists() or not any(out.iterdir()):
            os.replace(folder, out)
            _forget_record(out)
            return
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        os.replace(out, old)
        try:
            os.replace(folder, out)
        except OSError:
            os.replace(old, out)
            raise
    except OSError as error:
        raise access_error("write", out, error) from error
    _forget_record(out)
    shutil.rmtree(old, ignore_errors=True)


def _forget_record(out: Path) -> None:
    # Last: without its record a finished folder that was not moved yet would be made again.
    with suppress(OSError):
        (out / RECORD).unlink()
