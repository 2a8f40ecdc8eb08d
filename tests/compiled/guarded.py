"""Memory between guard pages: an access one element past its end, or before its start, is a crash."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
CANARY = 0xA5  # fills what nobody wrote
_NONE, _READ, _WRITE = 0, 1, 2
_PRIVATE, _ANONYMOUS = 2, 0x20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedMemory:
    """`nbytes` bytes that end at a guard page (`at_end`) or start behind one, aligned to `align` bytes."""

    def __init__(self, nbytes: int, at_end: bool, align: int = 1):
        self.nbytes = nbytes
        room = max(1, -(-nbytes // PAGE)) * PAGE
        self._size = room + 2 * PAGE
        self._base = _libc.mmap(None, self._size, _NONE, _PRIVATE | _ANONYMOUS, -1, 0)
        if self._base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"mmap of {self._size} bytes")
        self._inner, self._room = self._base + PAGE, room
        self._protect(_READ | _WRITE)
        self.address = self._inner + (room - nbytes) // align * align if at_end else self._inner
        ctypes.memset(self._inner, CANARY, room)

    def _protect(self, rights: int) -> None:
        if _libc.mprotect(self._inner, self._room, rights):
            raise OSError(ctypes.get_errno(), "mprotect")

    def fill(self, array: np.ndarray) -> None:
        """Copies the array in; writing is a crash from now on."""
        data = np.ascontiguousarray(array)
        assert data.nbytes == self.nbytes
        ctypes.memmove(self.address, data.ctypes.data, data.nbytes)
        self._protect(_READ)

    def read(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(self.address, self.nbytes), dtype).reshape(shape)

    def slack_is_untouched(self) -> bool:
        """Whether the bytes of the pages around the memory are as they were."""
        before = ctypes.string_at(self._inner, self.address - self._inner)
        end = self.address + self.nbytes
        after = ctypes.string_at(end, self._inner + self._room - end)
        return not (before + after).strip(bytes([CANARY]))

    def close(self) -> None:
        _libc.munmap(self._base, self._size)
