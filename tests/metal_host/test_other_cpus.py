"""The runtime and kernels are written for x86-64 and aarch64."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.metal_host.build import INCLUDE, PREAMBLE
from tests.metal_host.compiler import COMMON, HERE

TARGETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")


@pytest.fixture(scope="module")
def zig() -> str:
    """The compiler that has headers of every target."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("ziglang is not installed")
    return str(Path(spec.submodule_search_locations[0], "zig"))


def compiled(zig: str, target: str, folder: Path, *arguments: str) -> bytes:
    out = folder / "out.o"
    command = [zig, "c++", "-target", target, "-O1", "-fPIC", "-c", "-o", str(out), *arguments]
    subprocess.run(command, check=True, cwd=HERE / "runtime", capture_output=True)
    return out.read_bytes()


@pytest.mark.parametrize("target", TARGETS)
def test_the_runtime_compiles(zig: str, target: str, tmp_path: Path) -> None:
    """Its context switch is assembly."""
    code = compiled(zig, target, tmp_path, "-std=c++17", "-fno-exceptions", "runtime.cpp")
    assert b"mslh_swap" in code


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_compiles(zig: str, target: str, tmp_path: Path) -> None:
    """With MLX's preamble, half and bfloat arithmetic included."""
    unit = tmp_path / "unit.cpp"
    body = "bfloat f(bfloat a, half b) { return a * bfloat(float(b)) + a; }\n"
    unit.write_text(PREAMBLE + body)
    assert compiled(zig, target, tmp_path, *COMMON, *INCLUDE, str(unit))
