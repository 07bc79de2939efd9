"""Which files of the Hugging Face cache came by our doing, and taking those out again.

The cache is shared with other programs. A list beside a repository's files says what was fetched
here; nothing else is ever removed.
"""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mtplx.files import accessing, write_atomically

_RECORD = ".mtplx.json"
PART = ".mtplx.incomplete"  # the end of the names of files that are not whole yet


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file of a repository. link: its path below the repository's folder. etag: its content."""

    link: str
    etag: str


def fetched_files(folder: Path) -> list[Fetched]:
    """What was fetched here of the repository whose folder this is."""
    try:
        listed = json.loads((folder / _RECORD).read_bytes())["files"]
        return [Fetched(str(link), str(etag)) for link, etag in listed.items() if _is_below(link)]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return []


def record(folder: Path, files: Iterable[Fetched]) -> None:
    """Add files to the list, before the first byte of them is. Raises FileAccessError."""
    listed = {file.link: file.etag for file in [*fetched_files(folder), *files]}
    write_atomically(folder / _RECORD, json.dumps({"files": listed}, indent=1).encode())


def remove(folder: Path, files: Iterable[Fetched]) -> int:
    """Take files out that `fetched_files` gave, and the folder when nothing is left; gives bytes.

    A content that another file of the cache uses stays. Raises FileAccessError.
    """
    removed, num_bytes = {file.link for file in files}, 0
    kept = [file for file in fetched_files(folder) if file.link not in removed]
    wanted = {file.etag for file in fetched_files(folder) if file.link in removed}
    with accessing("remove files in", folder):
        for link in sorted(removed):
            num_bytes += _own_bytes(folder / link)
            (folder / link).unlink(missing_ok=True)
            _remove_empty(folder / link, folder)
        wanted -= _linked(folder)
        for etag in sorted(wanted):
            for blob in (folder / "blobs" / etag, folder / "blobs" / f"{etag}{PART}"):
                num_bytes += _own_bytes(blob)
                blob.unlink(missing_ok=True)
        if kept:
            write_atomically(
                folder / _RECORD,
                json.dumps({"files": {file.link: file.etag for file in kept}}).encode(),
            )
        else:
            _remove_rest(folder)
    return num_bytes


def _is_below(link: object) -> bool:
    parts = Path(str(link)).parts
    return len(parts) > 2 and parts[0] == "snapshots" and ".." not in parts


def _own_bytes(path: Path) -> int:
    """Bytes of a file itself; a link has none that matter."""
    try:
        return 0 if path.is_symlink() else path.lstat().st_size
    except OSError:
        return 0


def _linked(folder: Path) -> set[str]:
    """Contents that snapshots still use."""
    links = [path for path in (folder / "snapshots").rglob("*") if path.is_symlink()]
    return {Path(os.readlink(link)).name for link in links}


def _remove_empty(path: Path, folder: Path) -> None:
    with suppress(OSError):  # not empty, or gone
        while path.parent != folder / "snapshots":
            path = path.parent
            path.rmdir()


def _remove_rest(folder: Path) -> None:
    """Remove what only served the files that are gone, if no other file is there."""
    (folder / _RECORD).unlink(missing_ok=True)
    left = [*folder.glob("snapshots/**/*"), *folder.glob("blobs/*")]
    if not any(path.is_symlink() or path.is_file() for path in left):
        with suppress(OSError):  # a link to another disk; nothing of any size is behind it
            shutil.rmtree(folder)
