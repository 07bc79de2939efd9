"""A kernel's text -> a shared object that runs it, kept by the hash of everything it comes from."""

import functools
import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import mlx.core as mx

from tests.metal_host.compiler import (
    COMMON,
    FLAVOURS,
    HERE,
    LINK,
    CompileError,
    cache_folder,
    compile_with,
    compiler,
)
from tests.metal_host.count_text import with_counters
from tests.metal_host.rewrite import rewrite

Flavour = Literal["fast", "checked", "counted"]

MLX_HEADERS = Path(mx.__file__).parent / "include"
# Before a kernel's text MLX puts its utils.h. Three of the headers in it plain C++ cannot take.
PREAMBLE = '#include <metal_stdlib>\n#include "mlx/backend/metal/kernels/utils.h"\n'
INCLUDE = ("-isystem", str(HERE / "mlx"), "-isystem", str(MLX_HEADERS))
_GLUE = """#line 1 "glue"
extern "C" MSLH_RAW void mslh_kernel(void** a) {{ ::mslh::invoke(&{instance}, a); }}
"""


def build(text: str, instance: str, flavour: Flavour) -> Path:
    """The shared object that runs `instance` of the text.

    Raises CompileError with the compiler's messages, whose lines are those of the text.
    """
    body = rewrite(text)
    unit = f'#line 1 "kernel.metal"\n{body}\n' + _GLUE.format(instance=instance)
    flags = (*COMMON, *INCLUDE, *FLAVOURS[flavour])
    counting = (HERE / "count_text.py").read_text() if flavour == "counted" else ""
    final = cache_folder() / _key(unit, flavour, *flags, _host_text(), counting)
    if not (final / "kernel.so").exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            folder = Path(scratch, "built")
            folder.mkdir()
            (folder / "kernel.metal").write_text(body)
            (folder / "unit.cpp").write_text(unit)
            _compile(folder, flags, flavour)
            _publish(folder, final)
    return final / "kernel.so"


def _compile(folder: Path, flags: Sequence[str], flavour: Flavour) -> None:
    source = [*flags, *_precompiled(flags), "-x", "c++", "unit.cpp"]
    if flavour == "counted":
        compile_with([*source, "-S", "-emit-llvm", "-o", "unit.ll"], folder)
        counted = with_counters((folder / "unit.ll").read_text())
        (folder / "counted.ll").write_text(counted)
        compile_with(["-O1", "-fPIC", "-w", "-c", "counted.ll", "-o", "kernel.o"], folder)
    else:
        compile_with([*source, "-c", "-o", "kernel.o"], folder)
    compile_with([*LINK, "kernel.o", str(_runtime()), "-o", "kernel.so"], folder)


def _publish(folder: Path, final: Path) -> None:
    """Two processes may have built the same: the first one's stays."""
    try:
        os.rename(folder, final)
    except OSError:
        if not final.exists():
            raise


@functools.cache
def _runtime() -> Path:
    final = cache_folder() / f"runtime-{_key(_host_text(), *compiler())}.o"
    if not final.exists():
        flags = ["-std=c++17", "-O2", "-g1", "-gdwarf-4", "-fPIC", "-fno-exceptions", "-fno-rtti"]
        flags += ["-fno-sanitize=all", "-fno-stack-protector"]
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            out = Path(scratch, "runtime.o")
            compile_with([*flags, "-c", "runtime.cpp", "-o", str(out)], HERE / "runtime")
            os.replace(out, final)
    return final


def _precompiled(flags: Sequence[str]) -> list[str]:
    """The preamble, compiled once per set of flags."""
    folder = cache_folder() / f"preamble-{_key(*flags, _host_text())}"
    final = folder / "preamble.pch"
    if not final.exists():
        folder.mkdir(exist_ok=True)
        out = f"{os.getpid()}.pch"
        # Another process may be at it: neither sees half a file of the other's.
        (folder / f"{os.getpid()}.h").write_text("#pragma clang system_header\n" + PREAMBLE)
        os.replace(folder / f"{os.getpid()}.h", folder / "preamble.h")
        options = [*flags, "-Xclang", "-fno-pch-timestamp", "-x", "c++-header"]
        compile_with([*options, "preamble.h", "-o", out], folder)
        os.replace(folder / out, final)
    return ["-include-pch", str(final)]


@functools.cache
def _host_text() -> str:
    """Everything that stands behind a kernel: a change of it builds all of them anew."""
    ours = [*HERE.glob("include/**/*"), *HERE.glob("runtime/*"), *HERE.glob("mlx/**/*.h")]
    texts = [path.read_text() for path in sorted(ours) if path.is_file()]
    return _key(importlib.metadata.version("mlx"), *compiler(), *texts)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


__all__ = ["INCLUDE", "MLX_HEADERS", "PREAMBLE", "CompileError", "Flavour", "build"]
