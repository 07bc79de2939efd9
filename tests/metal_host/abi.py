"""The records of runtime/abi.h."""

import ctypes
from typing import ClassVar

import numpy as np

ACCESS = np.dtype(
    [
        ("pc", np.uint32),
        ("group", np.uint32),
        ("thread", np.uint32),
        ("buffer", np.int16),
        ("size", np.int16),  # negative: a store
        ("offset", np.uint32),
    ]
)


class Finding(ctypes.Structure):
    _fields_: ClassVar = [
        ("kind", ctypes.c_int),
        ("buffer", ctypes.c_int),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int),
        ("line", ctypes.c_int),
        ("column", ctypes.c_int),
        ("other_line", ctypes.c_int),
        ("group", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("other_group", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("text", ctypes.c_char * 64),
    ]


class Buffer(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int),
        ("initialised", ctypes.c_int),
    ]


class Variable(ctypes.Structure):
    _fields_: ClassVar = [("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Launch(ctypes.Structure):
    _fields_: ClassVar = [
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("num_args", ctypes.c_int),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("builtin", ctypes.POINTER(ctypes.c_int)),
        ("num_buffers", ctypes.c_int),
        ("buffers", ctypes.POINTER(Buffer)),
        ("num_variables", ctypes.c_int),
        ("variables", ctypes.POINTER(Variable)),
        ("seed", ctypes.c_uint64),
        ("shuffle", ctypes.c_int),
        ("checked", ctypes.c_int),
        ("strict", ctypes.c_int),
        ("record", ctypes.c_int),
        ("max_findings", ctypes.c_int),
        ("num_findings", ctypes.c_int),
        ("findings", ctypes.POINTER(Finding)),
        ("num_accesses", ctypes.c_uint64),
        ("accesses", ctypes.c_void_p),
    ]
