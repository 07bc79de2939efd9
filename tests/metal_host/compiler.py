"""The C++ compiler: the system's clang where there is one, else the one in the `ziglang` wheel."""

import functools
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
_NAMES = ("clang++", *(f"clang++-{version}" for version in range(22, 17, -1)))
_OLDEST = 18  # the first whose bfloat has arithmetic on every CPU

# -nostdlib: the kernels and the runtime use nothing of the C++ library, and zig would build one.
LINK = ("-shared", "-nostdlib", "-Wl,-Bsymbolic")
COMMON = (
    *("-std=c++14", "-fno-exceptions", "-fno-rtti", "-isystem", str(HERE / "include")),
    # half and bfloat round after each operation, as on the GPU, not at the end of an expression
    *("-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none"),
    *("-flax-vector-conversions=none", "-Wall", "-Wextra"),
    *("-Wno-unknown-attributes", "-Wno-unused-function", "-Wno-unused-parameter"),
    *("-Wno-ignored-attributes", "-Wno-sign-compare", "-Wno-unknown-pragmas"),
    *("-Wno-missing-braces", "-Wno-c++17-extensions"),
    *("-Werror=vla", "-Werror=return-type", "-Werror=uninitialized"),
)
_CPU = {"x86_64": ("-mf16c", "-mfma")}
_ALL = (
    *("-g1", "-gdwarf-4", "-fPIC", "-ffp-contract=off", "-fno-math-errno"),
    "-fno-stack-protector",
    *_CPU.get(platform.machine(), ()),
)
_POISON = "-ftrivial-auto-var-init=pattern"
FLAVOURS = {
    "fast": ("-O2", *_ALL, _POISON),
    # Whatever happens: races, bounds, uninitialised memory, undefined behaviour.
    "checked": (
        *("-O1", *_ALL, _POISON, "-DMSLH_CHECKED", "-fno-inline-functions"),
        "-fsanitize=thread,undefined,float-cast-overflow",
        *("-fno-sanitize=vptr,function,null,object-size,return", "-fno-sanitize-trap=all"),
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        *("-mllvm", "-tsan-instrument-read-before-write=1"),
    ),
    # What a GPU thread would execute: scalar code, all of it inlined and short loops unrolled, as
    # compilers for GPUs do.
    "counted": (
        *("-O2", *_ALL, "-fno-vectorize", "-fno-slp-vectorize"),
        *("-mllvm", "-inline-threshold=100000", "-mllvm", "-unroll-threshold=4000"),
    ),
}


class CompileError(Exception):
    """The compiler refused; its messages."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++.

    Raises CompileError if there is none.
    """
    for name in _NAMES:
        if (path := shutil.which(name)) and _version(path) >= _OLDEST:
            return (path,)
    # Importing the package would run the compiler in the place of this process.
    if (spec := importlib.util.find_spec("ziglang")) and spec.submodule_search_locations:
        return (str(Path(spec.submodule_search_locations[0], "zig")), "c++")
    raise CompileError("no clang++ and no ziglang: pip install ziglang")


def _version(path: str) -> int:
    code = "__clang_major__"
    command = [path, "-E", "-P", "-x", "c++", "-"]
    out = subprocess.run(
        command, check=False, input=code, capture_output=True, text=True
    ).stdout.split()
    return int(out[-1]) if out and out[-1].isdecimal() else 0


def compile_with(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the compiler in a folder; what it wrote.

    Raises CompileError with its messages.
    """
    command = [*compiler(), *arguments]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr)
    return done


def cache_folder() -> Path:
    """Where compiled kernels are kept between runs; tests in parallel may share it."""
    folder = Path(tempfile.gettempdir()) / f"mtplx-metal-host-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
