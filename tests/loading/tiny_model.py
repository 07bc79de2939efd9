"""A model of 3 MB in a wheel, and sources for it that need no network."""

import hashlib
import shutil
import zipfile
from functools import partial
from pathlib import Path

from mtplx.loading.catalogue import KnownModel
from mtplx.loading.progress import Progress
from mtplx.loading.sources import Source, SourceUnavailableError, from_pip

CONTENT = b"GGUF" + hashlib.shake_256(b"weights").digest(3_000_000)
MODEL = KnownModel(
    alias="tiny",
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    distribution="tiny-model",
    version="1.0",
    member="tiny_model/tiny.gguf",
    wheel_bytes=len(CONTENT),
    hub_repo="someone/tiny",
    hub_revision="0" * 40,
    fingerprint="0" * 32,
)


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def from_file(path: Path) -> Source:
    """A source that has the file at hand."""

    def source(model: KnownModel, folder: Path, report: Progress) -> Path:
        return Path(shutil.copy(path, folder))

    return source


def unavailable(model: KnownModel, folder: Path, report: Progress) -> Path:
    raise SourceUnavailableError("the moon is out of reach")


def contents(directory: Path) -> list[str]:
    """What a fetch left in the cache, apart from its lock."""
    return sorted(p.name for p in directory.iterdir() if p.name != ".lock")


def pip_from(folder: Path) -> Source:
    return partial(from_pip, arguments=["--no-index", "--find-links", str(folder)])
