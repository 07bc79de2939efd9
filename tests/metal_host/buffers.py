"""Memory for a kernel's buffers, with inaccessible memory on both sides."""

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_FENCE = 1 << 20
_SLACK = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_RESERVE = 0x4000


class GuardedBuffer:
    """Bytes between two inaccessible megabytes; their end touches the second, to 16 bytes."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        room = -(-max(num_bytes, 1) // 16) * 16
        pages = -(-room // mmap.PAGESIZE) * mmap.PAGESIZE
        self._total = pages + 2 * _FENCE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._base = _libc.mmap(None, self._total, 0, flags, -1, 0)
        assert self._base != ctypes.c_void_p(-1).value
        _libc.mprotect(self._base + _FENCE, pages, mmap.PROT_READ | mmap.PROT_WRITE)
        self.address: int = self._base + _FENCE + pages - room
        self.bytes = self._view(self.address, num_bytes)
        self._slack = self._view(self.address + num_bytes, room - num_bytes)
        self._slack[:] = _SLACK

    @staticmethod
    def _view(address: int, size: int) -> npt.NDArray[np.uint8]:
        if not size:
            return np.empty(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))

    def overrun(self) -> bool:
        """Whether a byte just behind the end has changed."""
        return bool((self._slack != _SLACK).any())

    def free(self) -> None:
        _libc.munmap(self._base, self._total)
