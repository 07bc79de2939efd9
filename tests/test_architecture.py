"""Imports point one way: the decode core knows nothing of files, text, terminals or the network."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mtplx"

# What each module or subpackage may import of ours, besides itself. "" is the package's own file.
CORE = {
    "cache",
    "checkpoints",
    "auto_depth",
    "costs",
    "coupled",
    "decode",
    "depth",
    "draft_gain",
    "draft_mode",
    "draft_options",
    "drafting",
    "errors",
    "logprobs",
    "lookup",
    "pace",
    "params",
    "prospect",
    "rng",
    "rounds",
    "sampling",
    "shipped_costs",
    "speculation",
    "state",
    "stats",
    "verification",
    "warps",
}
MODEL = {"cache", "errors", "models", "speculation", "state"}
DISK = {"data", "errors", "files", "paths"}
ALL = (
    CORE
    | MODEL
    | DISK
    | {
        "",
        "blas",
        "generate",
        "loading",
        "machine",
        "profile",
        "profile_file",
        "prompt_cache",
        "prompts",
        "request",
        "result",
        "text",
    }
)
ALLOWED: dict[str, set[str]] = {
    "": {"blas", "draft_options", "errors", "generate", "loading", "sampling"},
    "errors": set(),
    "paths": {"errors"},
    "files": {"errors"},
    "config": DISK | {"depth", "params"},
    "config_edit": DISK | {"config"},
    "data": {"errors"},
    "prompts": {"data", "errors"},
    "blas": {"blas_binding", "errors"},
    "blas_binding": set(),
    "speculation": set(),
    **dict.fromkeys(CORE - {"errors", "speculation"}, CORE),
    **dict.fromkeys(("sampling", "verification", "warps"), CORE | {"kernels"}),
    "metal": set(),
    "kernels": {"errors", "metal", "profile"},
    "quant": {"errors", "kernels"},
    "models": {"blas", "cache", "errors", "kernels", "quant", "speculation"},
    "machine": {"", "blas"},
    "profile": DISK | {"costs"},
    "profile_file": DISK | {"config", "costs", "profile"},
    "loading": MODEL
    | DISK
    | {"checkpoints", "costs", "kernels", "machine", "pace", "params", "profile", "profile_file"}
    | {"quant", "text"},
    "conversion": MODEL | DISK | {"loading", ""},
    "text": {"errors", "loading"},
    "prompt_cache": CORE | DISK | {"loading"},
    "result": {"logprobs", "stats"},
    "request": CORE | {"blas", "loading", "text"},
    "generate": ALL - {"generate", ""},
    "training": ALL - {"generate"},
    "tuner": ALL | {"bench", "kernels"},
    "bench": ALL | {"kernels", "quant"},
    "chat": ALL,
    "cli": ALL | {"bench", "chat", "config", "config_edit", "conversion", "training", "tuner"},
    "__main__": {"cli"},
}

# Libraries that cost start-up time or tie code to a place, and who may import them.
LIBRARIES: dict[str, set[str]] = {
    "gguf": {"loading", "quant"},
    "huggingface_hub": {"loading"},
    "mlx_lm": {"loading", "models", "bench"},
    "platformdirs": {"paths"},
    "prompt_toolkit": {"chat"},
    "resvg_py": {"tuner"},
    "rich": {"chat", "cli", "tuner"},
    "tokenizers": {"loading"},
    "tomlkit": {"config_edit", "profile_file"},
    "torch": {"training"},
    "transformers": {"loading"},
    "typer": {"cli"},
}
SLOW_TO_IMPORT = {"huggingface_hub", "mlx_lm", "torch", "transformers"}
# Packages that stand beside mtplx/ in the repository.
PLACES = {"mtplx.metal": ROOT / "metal", "mtplx.tuner": ROOT / "tuner"}
FILES = sorted(
    [*PACKAGE.rglob("*.py"), *(file for place in PLACES.values() for file in place.rglob("*.py"))]
)


def unit(module: str) -> str:
    """The part of ours a module belongs to: "mtplx.loading.fetch" -> "loading"."""
    return module.split(".")[1] if "." in module else ""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere under `tree`; names taken from mtplx itself count as parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "mtplx":
            for alias in node.names:
                is_part = (PACKAGE / alias.name).is_dir() or (
                    PACKAGE / f"{alias.name}.py"
                ).is_file()
                yield f"mtplx.{alias.name}" if is_part else "mtplx"
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[0] != PACKAGE.name:
        parts = (PACKAGE.name, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_point_one_way(file: Path) -> None:
    """A module imports of ours what stands below it, and libraries that its place may know."""
    own = unit(module_name(file))
    assert own in ALLOWED, f"give mtplx.{own} a row in this table"
    for name in imports(ast.parse(file.read_text())):
        top = name.split(".")[0]
        if top == "mtplx":
            assert unit(name) in ALLOWED[own] | {own}, f"{own or 'mtplx'} may not import {name}"
        else:
            assert own in LIBRARIES.get(top, {own}), f"{own or 'mtplx'} may not import {name}"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_slow_libraries_are_imported_where_they_are_used(file: Path) -> None:
    """What takes a second to import is imported inside functions."""
    at_start = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    found = {name.split(".")[0] for node in at_start for name in imports(node)}
    assert not found & SLOW_TO_IMPORT


def imported_by(*arguments: str) -> set[str]:
    """Every module that a fresh interpreter imports when run with `arguments`."""
    command = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_importing_the_package_imports_nothing_heavy() -> None:
    """`import mtplx` costs a script nothing until it uses a name."""
    found = imported_by("-c", "import mtplx")
    assert "mtplx.errors" in found
    assert not found & {"mlx.core", "numpy", "rich", "typer", "huggingface_hub", "mlx_lm", "ctypes"}


def test_help_does_not_import_mlx() -> None:
    """`mtplx --help` answers before anything is loaded that it does not need."""
    found = imported_by("-m", "mtplx", "--help")
    assert "mtplx.cli" in found
    assert not found & {"mlx.core", "numpy", "huggingface_hub", "mlx_lm", "transformers"}
