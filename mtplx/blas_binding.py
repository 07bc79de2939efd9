"""Which library a symbol of libmlx is bound to, read from the loaded image (glibc, 64-bit ELF)."""

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_RTLD_DI_LINKMAP = 2
_SYMBOL_BYTES = 24  # Elf64_Sym; its first word is the offset of the name


class _LinkMap(ctypes.Structure):
    """struct link_map of <link.h>, one per loaded library."""


_LinkMap._fields_ = [
    ("base", ctypes.c_size_t),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_size_t),
    ("next", ctypes.POINTER(_LinkMap)),
    ("previous", ctypes.POINTER(_LinkMap)),
]


class _Symbol(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def library_of(address: int) -> Path | None:
    """The library that the code at `address` belongs to."""
    symbol = _Symbol()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(symbol)):
        return None
    return Path(os.path.normpath(os.fsdecode(symbol.library)))


def bound_library(function: str) -> Path | None:
    """The library whose `function` MLX calls; None where that cannot be read.

    MLX's relocation table holds the address that the dynamic linker gave it, which no library
    loaded later can change.
    """
    for library in _loaded_libraries():
        name = os.path.normpath(os.fsdecode(library.name or b""))
        if "/mlx/" not in name:
            continue
        for address in _bound_addresses(library, function.encode()):
            found = library_of(address)
            if found is not None and found != Path(name):  # its own stub: not bound yet
                return found
    return None


def _loaded_libraries() -> Iterator[_LinkMap]:
    process = ctypes.CDLL(None)
    if not hasattr(process, "dlinfo"):
        return
    first = ctypes.POINTER(_LinkMap)()
    handle = ctypes.c_void_p(process._handle)
    if process.dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(first)) != 0:
        return
    while first:
        yield first.contents
        first = first.contents.next


def _bound_addresses(library: _LinkMap, function: bytes) -> Iterator[int]:
    tables = dict(_dynamic_entries(library))
    if not {_DT_STRTAB, _DT_SYMTAB} <= tables.keys() or tables[_DT_STRTAB] < library.base:
        return  # another libc, which keeps offsets here
    for start, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if start not in tables or size not in tables:
            continue
        rows = ctypes.string_at(tables[start], tables[size])
        for offset, info, _ in struct.iter_unpack("<QQq", rows):
            symbol = tables[_DT_SYMTAB] + _SYMBOL_BYTES * (info >> 32)
            name = tables[_DT_STRTAB] + ctypes.c_uint32.from_address(symbol).value
            if info >> 32 and ctypes.string_at(name) == function:
                yield ctypes.c_size_t.from_address(library.base + offset).value


def _dynamic_entries(library: _LinkMap) -> Iterator[tuple[int, int]]:
    address = library.dynamic
    while True:
        tag, value = struct.unpack("<qQ", ctypes.string_at(address, 16))
        if tag == 0:
            return
        yield tag, value
        address += 16
