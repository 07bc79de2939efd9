"""What is installed is what stands in the repository, and the public names work."""

import email
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import mtplx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BESIDE: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]  # packages beside mtplx/


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_every_package_directory_is_listed() -> None:
    """A subpackage missing from pyproject.toml works in a checkout and vanishes from the wheel."""
    listed = PROJECT["tool"]["setuptools"]["packages"]
    inside = [p for p in ROOT.glob("mtplx/**/__init__.py") if not p.parent.is_symlink()]
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in inside}
    assert sorted(listed) == sorted(found | set(BESIDE))


@pytest.mark.parametrize("name", BESIDE)
def test_a_package_beside_mtplx_is_linked_into_it(name: str) -> None:
    """So that type checkers and checkouts that are not installed find it under its name."""
    link = ROOT.joinpath(*name.split("."))
    assert link.is_symlink()
    assert link.resolve() == (ROOT / BESIDE[name]).resolve()


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py is not installed."""
    folders = {p.parent for p in ROOT.glob("mtplx/**/*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that the checkout stays as it is."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("mtplx", *BESIDE.values()):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """Code, data and the typing marker are all in it, and nothing else is."""
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    places = {"mtplx": "mtplx"} | {name.replace(".", "/"): BESIDE[name] for name in BESIDE}
    there = {
        str(place / path.relative_to(ROOT / folder))
        for place, folder in ((Path(place), folder) for place, folder in places.items())
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }
    assert shipped == there


@pytest.mark.slow
def test_the_wheel_states_its_licence_and_command(wheel: zipfile.ZipFile) -> None:
    """The licence is named and included, and `mtplx` is the command that is installed."""
    info = f"mtplx-{PROJECT['project']['version']}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")
    assert b"mtplx = mtplx.cli:main" in wheel.read(f"{info}/entry_points.txt")


@pytest.mark.parametrize("name", sorted(set(mtplx.__all__) - {"__version__"}))
def test_each_public_name_is_there(name: str) -> None:
    """What __all__ promises can be imported, and is no module."""
    assert run(f"from mtplx import {name}; print(type({name}).__name__)") in {
        "function\n",
        "type\n",
    }


@pytest.mark.parametrize("first", ["from mtplx import generate", "import mtplx.generate"])
def test_generate_is_the_function_whatever_is_imported_first(first: str) -> None:
    """The module of the same name does not take the function's place."""
    code = f"{first}; import mtplx; from mtplx import generate; print(callable(mtplx.generate))"
    assert run(f"{code}; assert generate is mtplx.generate") == "True\n"


def test_a_public_name_puts_the_fast_blas_in_front_of_mlx() -> None:
    """Who only imports a public name gets the same BLAS as who preloads it."""
    code = "from mtplx import SamplingParams; from mtplx.blas import serving; print(serving())"
    assert run(code) == run("from mtplx.blas import *; preload(); print(serving())")


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A slip in a name is answered as in any other module."""
    with pytest.raises(AttributeError, match="generat'"):
        mtplx.generat  # noqa: B018


def test_the_version_is_the_projects() -> None:
    """The version is stated once, in pyproject.toml."""
    if mtplx.__version__ == "0+unknown":
        pytest.skip("mtplx is not installed here")
    assert mtplx.__version__ == PROJECT["project"]["version"]
