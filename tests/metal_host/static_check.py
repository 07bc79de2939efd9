"""Faults that show without running a kernel: address spaces, and what Metal's language lacks."""

import functools
import re
import tempfile
from pathlib import Path

from tests.metal_host.build import INCLUDE, MLX_HEADERS, PREAMBLE
from tests.metal_host.compiler import COMMON, CompileError, compile_with
from tests.metal_host.rewrite import rewrite

# C++ has no address space on a parameter of array type.
_ARRAY_PARAMETER = re.compile(
    r"((?:(?:const|device|constant|threadgroup)\s+)+\w+)\s+(\w+)\[\w+\](\s*[,)])"
)
_UTILS = "mlx/backend/metal/kernels/utils.h"
_FLAGS = (
    *("-DMSLH_ADDRESS_SPACES", "-O0", "-g1", "-fno-sanitize=all", "-Xclang"),
    *("-disable-llvm-passes", "-Wimplicit-float-conversion"),
    *("-S", "-emit-llvm", "-x", "c++", "unit.cpp", "-o", "unit.ll"),
)
_AT = r"^\S*kernel\.metal:\d+:\d+: "
_STATIC = re.compile(
    r"^@(\S+) = (?!.*\b(?:addrspace|external|private)\b).*\b(?:global|constant) .*$", re.M
)
_LINT = {
    r"\bdouble\b": "Metal has no double",
    r"\bgoto\b": "Metal has no goto",
    r"\b(?:new|delete|throw|try|catch|dynamic_cast|typeid|virtual|thread_local)\b": "not in Metal",
    r"\bstd::": "Metal has metal::, not std::",
    r"\[[&=]?[\w, &]*\]\s*\([^)]*\)\s*(?:->\s*\w+\s*)?\{": "Metal before 4.0 has no lambdas",
    r"\bprintf\b": "no printf",
    r"^\s*#\s*include\s*<(?!metal_)": "only metal_* headers",
}
_NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", re.S)


def check_static(text: str) -> list[str]:
    """What clang objects to with address spaces as types, and casts between them it let through."""
    body = _ARRAY_PARAMETER.sub(r"\1* \2\3", rewrite(text))
    unit = f'{PREAMBLE}#line 1 "kernel.metal"\n{body}\n'
    with tempfile.TemporaryDirectory() as scratch:
        utils = Path(scratch, _UTILS)
        utils.parent.mkdir(parents=True)
        utils.write_text(_utils_with_pointers())
        Path(scratch, "unit.cpp").write_text(unit)
        flags = [*COMMON, "-isystem", scratch, *INCLUDE, *_FLAGS]
        try:
            said = compile_with(flags, Path(scratch)).stderr
            code = Path(scratch, "unit.ll").read_text()
        except CompileError as error:
            return re.findall(_AT + r"error: .*$", str(error), re.M) or [str(error)]
    # Metal converts float to bfloat only when asked.
    implicit = _AT + r"warning: implicit conversion.* to \S+(?: \(aka )?'__bf16'.*$"
    found = [m.group() for m in re.finditer(implicit, said, re.M)]
    found += [
        f"a program-scope or static variable must be `constant`: {variable[1]}"
        for variable in _STATIC.finditer(code)
    ]
    return found + _casts(code)


def lint(text: str) -> list[str]:
    """What clang takes and Metal refuses, by its spelling."""
    bare = _NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    return [
        f"kernel.metal:{bare.count(chr(10), 0, m.start()) + 1}: {why}: {m.group().strip()}"
        for pattern, why in _LINT.items()
        for m in re.finditer(pattern, bare, re.M)
    ]


@functools.cache
def _utils_with_pointers() -> str:
    return _ARRAY_PARAMETER.sub(r"\1* \2\3", (MLX_HEADERS / _UTILS).read_text())


def _casts(code: str) -> list[str]:
    """Casts between address spaces in the LLVM text, outside of the host's own functions."""
    lines = dict(re.findall(r"^(!\d+) = !DILocation\(line: (\d+)", code, re.M))
    found, function = [], ""
    for line in code.splitlines():
        if line.startswith("define"):
            function = line
        if "addrspacecast" in line and "mslh" not in function:
            at = re.search(r"!dbg (!\d+)", line)
            number = lines.get(at[1], "?") if at else "?"
            found.append(f"kernel.metal:{number}: cast between address spaces: {line.strip()[:90]}")
    return found
