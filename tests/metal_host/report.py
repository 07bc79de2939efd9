"""Findings of the runtime as sentences, with the line of the kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.metal_host import abi
from tests.metal_host.elf import Variable, group_variables, line_of

# In the order of `Kind` in runtime/abi.h.
KINDS = (
    "",
    "data race",
    "out-of-bounds read",
    "out-of-bounds write",
    "read of uninitialised memory",
    "write to an input",
    "divergence",
    "barrier after some threads returned",
    "undefined behaviour",
    "memory fault",
    "stack overflow",
    "misaligned access",
)
_OF_TWO = {"data race", "divergence", "barrier after some threads returned"}
_OF_NO_MEMORY = {"divergence", "barrier after some threads returned", "undefined behaviour"}
_OF_SIZE = {"out-of-bounds read", "out-of-bounds write", "memory fault"}


@dataclass(frozen=True, slots=True)
class _Dispatch:
    module: Path
    base: int  # where the module was loaded
    names: Sequence[str]
    sizes: Sequence[int]
    variables: Sequence[Variable]
    text: Sequence[str]


def sentences(
    module: Path,
    base: int,
    findings: Sequence[abi.Finding],
    names: Sequence[str],
    sizes: Sequence[int],
) -> list[str]:
    """One sentence per finding; names and sizes are those of the buffers."""
    if not findings:
        return []
    text = (module.parent / "kernel.metal").read_text().splitlines()
    dispatch = _Dispatch(module, base, names, sizes, group_variables(module), text)
    return [_sentence(dispatch, finding) for finding in findings]


def _sentence(dispatch: _Dispatch, f: abi.Finding) -> str:
    kind = KINDS[f.kind]
    said = f"{kind}: threadgroup {f.group}, thread {f.thread}"
    if kind not in _OF_NO_MEMORY:
        name, size = _memory(dispatch, f.buffer)
        said += f": {name} byte {f.offset}"
        said += f" ({f.size} bytes)" if f.size else ""
        said += f" of {size}" if kind in _OF_SIZE and size is not None else ""
    said += f" [{f.text.decode()}]" if f.text else ""
    said += f" at {_place(dispatch, f.line, f.pc)}"
    if kind in _OF_TWO:
        other = _place(dispatch, f.other_line, f.other_pc)
        said += f"\n    with threadgroup {f.other_group}, thread {f.other_thread} at {other}"
    return said


def _memory(dispatch: _Dispatch, buffer: int) -> tuple[str, int | None]:
    if buffer <= -2:
        variable = dispatch.variables[-2 - buffer]
        return f"threadgroup memory `{variable.name}`", variable.num_bytes
    if buffer >= 0:
        return f"buffer `{dispatch.names[buffer]}`", dispatch.sizes[buffer]
    return "memory", None


def _place(dispatch: _Dispatch, line: int, pc: int) -> str:
    if not line and pc > dispatch.base:
        line = line_of(dispatch.module, pc - dispatch.base - 1)  # pc is behind the call
    if not 0 < line <= len(dispatch.text):
        return "?"
    return f"kernel.metal:{line}: `{dispatch.text[line - 1].strip()[:200]}`"
