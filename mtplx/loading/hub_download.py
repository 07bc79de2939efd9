"""Files from the Hugging Face hub into its cache.

A download is of one commit, goes on where it was broken off, and is compared with the hashes that
the hub lists before a file gets its name. The result is laid out as by the hub's own client, so
that other programs find it. That client's download is not used: it begins anew each time, and
compares sizes alone.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mtplx.errors import DownloadError, FileAccessError
from mtplx.files import accessing, locked, put_in_place, write_atomically
from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import PART, Fetched, record
from mtplx.loading.progress import Progress, quiet_hub, watching
from mtplx.paths import ensure_dir

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub lists it.

    etag: the SHA-256 of its content, or for small files the SHA-1 that git gives it.
    """

    name: str
    num_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Download:
    """One commit of one repository on its way into the cache.

    report: told how far it is. endpoint: the hub's address, the client's own where None.
    """

    repo: str
    commit: str
    cache: Path
    endpoint: str | None
    report: Progress

    @property
    def folder(self) -> Path:
        return repo_folder(self.repo, self.cache)

    def run(self, files: list[HubFile], revision: str) -> None:
        """Bring what is missing or wrong of `files`, and let `revision` stand for the commit.

        Raises DownloadError, FileAccessError and what the hub's client lets through.
        """
        locks = self._folders()
        with locked(locks / "mtplx.lock", lambda: self.report(0, 0, "waiting")):
            absent = [file for file in files if not self._is_right(file)]
            _make_room(self.folder, sum(map(self._bytes_to_come, absent)))
            total = sum(file.num_bytes for file in absent)
            done = 0
            for file in absent:
                with locked(locks / f"{file.etag}.lock", lambda: self.report(0, 0, "waiting")):
                    self._bring(file, done, total)
                done += file.num_bytes
            if revision != self.commit:
                ref = self.folder / "refs" / revision
                ref.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(ref, self.commit.encode())

    def _folders(self) -> Path:
        if not self.cache.is_absolute():
            raise FileAccessError(
                f"The Hugging Face cache would be {self.cache}, which is no place: this user has "
                "no home folder. Set HF_HOME to a folder."
            )
        for name in ("blobs", "snapshots"):
            ensure_dir(self.folder / name)
        return ensure_dir(self.cache / ".locks" / self.folder.name)

    def _link(self, file: HubFile) -> Path:
        return self.folder / "snapshots" / self.commit / file.name

    def _blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.etag

    def _part(self, file: HubFile) -> Path:
        return self.folder / "blobs" / f"{file.etag}{PART}"

    def _bytes_to_come(self, file: HubFile) -> int:
        part = self._part(file)
        return max(0, file.num_bytes - (part.stat().st_size if part.is_file() else 0))

    def _is_right(self, file: HubFile) -> bool:
        """Whether the file is there with the content that the hub lists."""
        link = self._link(file)
        return link.is_file() and has_content(link, file, self.report)

    def _bring(self, file: HubFile, done: int, total: int) -> None:
        """Make the snapshot hold the file, whatever lies in its place."""
        blob, link = self._blob(file), self._link(file)
        if not (blob.is_file() and has_content(blob, file, self.report)):
            record(self.folder, [Fetched(str(link.relative_to(self.folder)), file.etag)])
            with suppress(FileNotFoundError):
                blob.unlink()
            part = self._part(file)

            def measure() -> int:
                return done + (part.stat().st_size if part.is_file() else 0)

            with watching(measure, total, self.report), quiet_hub():
                self._fetch(file, part)
            put_in_place(part, blob)
        with accessing("write", link):
            _put_link(blob, link)

    def _fetch(self, file: HubFile, part: Path) -> None:
        """Complete `part`, and begin it anew if what was there of it turns out to be wrong."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self.repo, file.name, revision=self.commit, endpoint=self.endpoint)
        for is_last in (False, True):
            with accessing("write", part):
                there = part.stat().st_size if part.is_file() else 0
                if there > file.num_bytes:
                    os.truncate(part, 0)
                    there = 0
            with part.open("ab") as out:
                http_get(
                    url,
                    out,
                    resume_size=there,
                    headers=build_hf_headers(),
                    expected_size=file.num_bytes,
                )
            if has_content(part, file, self.report):
                return
            part.unlink()
            if is_last or there == 0:
                break
        raise DownloadError(
            f"{self.repo}/{file.name} came with another content than the hub lists for it "
            f"({file.etag}). It was not kept. Run this again."
        )


def has_content(path: Path, file: HubFile, report: Progress) -> bool:
    """Whether a file is byte for byte what the hub lists. Reads all of it."""
    if path.stat().st_size != file.num_bytes:
        return False
    if len(file.etag) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.num_bytes}\0".encode(), usedforsecurity=False)
    done = 0
    with accessing("read", path), path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if file.num_bytes > 64 * _CHUNK_BYTES:  # less is checked before anyone could read it
                report(done, file.num_bytes, "checking")
    return digest.hexdigest() == file.etag


def _put_link(blob: Path, link: Path) -> None:
    """Let `link` stand for `blob`; where the file system has no links, the blob moves there."""
    link.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, link.parent)
    if link.is_symlink() and os.readlink(link) == target:
        return
    with suppress(FileNotFoundError):
        link.unlink()
    try:
        os.symlink(target, link)
    except FileExistsError:  # another program of this hub was faster
        return
    except OSError:
        os.replace(blob, link)


def _make_room(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise FileAccessError(
            f"The files take {num_bytes / 1e6:,.0f} MB more in {folder.parent} and "
            f"{free / 1e6:,.0f} MB are free. Free some space, or set HF_HOME to a folder on "
            "another disk."
        )
