"""One dispatch of a built kernel: its buffers, the call of the runtime, what was found."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.metal_host import abi
from tests.metal_host.buffers import GuardedBuffer
from tests.metal_host.count_text import KINDS
from tests.metal_host.dtypes import Array
from tests.metal_host.elf import group_variables
from tests.metal_host.report import sentences

GROUP_MEMORY_LIMIT = 32768
_MAX_FINDINGS = 32

Size = tuple[int, int, int]
Accesses = npt.NDArray[np.void]  # of dtype abi.ACCESS


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer of the kernel; outputs are updated in place."""

    name: str
    array: Array
    writable: bool = False
    initialised: bool = True


@dataclass(frozen=True, slots=True)
class Mode:
    """How a kernel is run.

    checked: the module is a checked build. record: keep every access of a buffer (checked builds).
    seed, shuffle: the order of threads. strict: divergence at a SIMD-group function is a finding.
    """

    checked: bool = False
    record: bool = False
    seed: int = 0
    shuffle: bool = True
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a dispatch left besides its outputs.

    operations: executed operations by kind, in a counted build, else zeros.
    """

    findings: list[str]
    group_bytes: int
    accesses: Accesses
    operations: dict[str, int]


def launch(
    module: Path, arguments: Sequence[Argument | int], grid: Size, threadgroup: Size, mode: Mode
) -> Outcome:
    """Run the module over the grid. An argument that is a number is the index of a built-in."""
    library = ctypes.CDLL(str(module))
    library.mslh_base.restype = ctypes.c_uint64
    given = [a for a in arguments if isinstance(a, Argument)]
    with _filled(given) as buffers, _counting(library) as operations:
        call = _call(module, arguments, buffers, mode)
        call.grid[:] = grid
        call.group[:] = threadgroup
        library.mslh_run(ctypes.byref(call))
        found = [call.findings[i] for i in range(call.num_findings)]
        names, sizes = [a.name for a in given], [b.num_bytes for b in buffers]
        findings = sentences(module, library.mslh_base(), found, names, sizes)
        for argument, buffer in zip(given, buffers, strict=True):
            if buffer.overrun():
                findings.append(f"out-of-bounds write: bytes behind `{argument.name}` changed")
            if argument.writable:
                argument.array.reshape(-1).view(np.uint8)[:] = buffer.bytes
        accesses = _accesses(call)
    group_bytes = sum(v.num_bytes for v in group_variables(module))
    if group_bytes > GROUP_MEMORY_LIMIT:
        findings.append(
            f"threadgroup memory: {group_bytes} bytes, the limit is {GROUP_MEMORY_LIMIT}"
        )
    return Outcome(findings, group_bytes, accesses, operations)


@contextmanager
def _filled(arguments: Sequence[Argument]) -> Iterator[list[GuardedBuffer]]:
    buffers = [GuardedBuffer(a.array.nbytes) for a in arguments]
    for argument, buffer in zip(arguments, buffers, strict=True):
        if argument.initialised:
            buffer.bytes[:] = np.ascontiguousarray(argument.array).reshape(-1).view(np.uint8)
        else:
            buffer.bytes[:] = 0xFF  # NaN, so that an element that nobody writes shows
    try:
        yield buffers
    finally:
        for buffer in buffers:
            buffer.free()


@contextmanager
def _counting(library: ctypes.CDLL) -> Iterator[dict[str, int]]:
    """Filled at the end with what a counted build has counted."""
    operations = dict.fromkeys(KINDS, 0)
    try:
        counters = (ctypes.c_int64 * len(KINDS)).in_dll(library, "mslh_count")
    except ValueError:
        yield operations
        return
    counters[:] = [0] * len(KINDS)
    yield operations
    operations.update(zip(KINDS, counters, strict=True))


def _call(
    module: Path,
    arguments: Sequence[Argument | int],
    buffers: Sequence[GuardedBuffer],
    mode: Mode,
) -> abi.Launch:
    n = len(arguments)
    addresses = iter([b.address for b in buffers])
    pointers = [next(addresses) if isinstance(a, Argument) else None for a in arguments]
    builtins = [-1 if isinstance(a, Argument) else a for a in arguments]
    given = [a for a in arguments if isinstance(a, Argument)]
    memory = [
        (b.address, b.num_bytes, a.writable, a.initialised)
        for a, b in zip(given, buffers, strict=True)
    ]
    variables = [(v.offset, v.num_bytes) for v in group_variables(module)]
    return abi.Launch(
        num_args=n,
        args=(ctypes.c_void_p * n)(*pointers),
        builtin=(ctypes.c_int * n)(*builtins),
        num_buffers=len(memory),
        buffers=_rows(abi.Buffer, memory),
        num_variables=len(variables),
        variables=_rows(abi.Variable, variables),
        seed=mode.seed,
        shuffle=mode.shuffle,
        strict=mode.strict,
        checked=mode.checked,
        record=mode.record,
        max_findings=_MAX_FINDINGS,
        findings=(abi.Finding * _MAX_FINDINGS)(),
    )


def _rows(kind: Any, rows: Sequence[tuple[int, ...]]) -> Any:
    return (kind * max(len(rows), 1))(*[kind(*row) for row in rows])


def _accesses(call: abi.Launch) -> Accesses:
    if not call.num_accesses:
        return np.empty(0, abi.ACCESS)
    size = call.num_accesses * abi.ACCESS.itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(call.accesses), abi.ACCESS).copy()
