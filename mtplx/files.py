"""Writing so that a reader meets the old file or the new one, and errors a person can act on."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mtplx.errors import FileAccessError

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space and run this again",
    errno.EDQUOT: "your disk quota is used up; free some space and run this again",
    errno.EFBIG: "the file would be larger than this system allows; raise the limit (ulimit -f)",
    errno.EACCES: "permission denied; change its rights or choose another place",
    errno.EPERM: "permission denied; change its rights or choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENOENT: "there is no such file or folder",
    errno.ENAMETOOLONG: "the name is too long for this file system",
}

# What the disk or its rights can answer to a write, as opposed to a mistaken path.
STORAGE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
)


def access_error(action: str, path: Path, error: OSError) -> FileAccessError:
    """The error to show when `action` ("write", "read") on `path` met an operating system error."""
    reason = _REMEDIES.get(error.errno or 0, error.strerror or str(error))
    return FileAccessError(f"Cannot {action} {path}: {reason}.")


@contextmanager
def accessing(action: str, path: Path) -> Iterator[None]:
    """Turn an operating system error inside the block into a FileAccessError naming `path`."""
    try:
        yield
    except OSError as error:
        raise access_error(action, path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error.

    The block creates the file. It is flushed to the disk before it is moved, so that not even a
    power cut leaves half a file under the final name. Raises FileAccessError.
    """
    with (
        accessing("write", path),
        tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder,
    ):
        part = Path(folder) / path.name
        yield part
        put_in_place(part, path)


def put_in_place(part: Path, path: Path) -> None:
    """Move a finished file over `path` in one step; both are on one file system. Raises OSError."""
    _flush(part)
    os.replace(part, path)
    _flush(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds all of it or what it held before.

    Raises FileAccessError.
    """
    with replacing(path) as part:
        part.write_bytes(content)


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Be the only process inside; gives whether there is such a lock.

    path: an empty file that stands for it, created where missing and left there.
    waiting: called before waiting for another process that is inside.

    The lock goes with its process, however that ends. Some network file systems have none: then
    several may be inside, which what is done there must survive. Raises FileAccessError.
    """
    import fcntl

    with accessing("write", path):
        lock = path.open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
