"""What a built kernel's shared object says: threadgroup variables and lines of machine code."""

import bisect
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection


@dataclass(frozen=True, slots=True)
class Variable:
    """A threadgroup variable: its name in the source, and where it lies in the module."""

    name: str
    offset: int
    num_bytes: int


@functools.cache
def group_variables(module: Path) -> tuple[Variable, ...]:
    """Every threadgroup variable of a module."""
    with module.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        symbols = [(s.name, s["st_value"], s["st_size"]) for s in table.iter_symbols()]
    at = {name: value for name, value, _ in symbols}
    low, high = at.get("__start_mslh_tg", 0), at.get("__stop_mslh_tg", 0)
    return tuple(
        Variable(_source_name(name), value, size)
        for name, value, size in symbols
        if low <= value < high and size and "mslh_guard" not in name
    )


def _source_name(mangled: str) -> str:
    """`xs` from `_ZZ..E2xs` or `_ZZ..E2xs_0`."""
    for found in re.finditer(r"(?=E(\d+)([A-Za-z_]\w*))", mangled):
        length, rest = int(found[1]), found[2]
        if re.fullmatch(r"(_\d*)?", rest[length:]):
            return rest[:length]
    return mangled


@functools.cache
def _line_table(module: Path) -> list[tuple[int, int]]:
    """(address, line of kernel.metal), by address; line 0 is code of another file."""
    with module.open("rb") as file:
        info = ELFFile(file).get_dwarf_info()
        rows = [row for unit in info.iter_CUs() for row in _rows(info, unit)]
    return sorted(rows)


def _rows(info: Any, unit: Any) -> Iterator[tuple[int, int]]:
    program = info.line_program_for_CU(unit)
    if program is None:
        return
    files = program["file_entry"]
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        ours = files[state.file - 1].name.endswith(b"kernel.metal")
        yield state.address, state.line if ours and not state.end_sequence else 0


def line_of(module: Path, offset: int) -> int:
    """The line of kernel.metal that an instruction comes from, or 0."""
    table = _line_table(module)
    at = bisect.bisect_right(table, (offset, 1 << 30)) - 1
    return table[at][1] if at >= 0 else 0
