"""Read, map and release pages of a memory map without holding the GIL.

``mmap.madvise`` holds it while the system reads from disk or releases pages, and other threads wait
as long.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable

import numpy as np

_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_MAPPED_AT_ONCE = 1 << 16  # bytes
_WITHOUT_GIL = 512  # items
_SAMPLES = 3  # pages that are inspected


@functools.cache
def _system_call(name: str, last: type) -> Callable[..., int] | None:
    """Return a system call for a range of memory, or None on a system without it."""
    try:
        found = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, last)
    found.restype = ctypes.c_int
    return found


class MappedPages:
    """The pages of a memory map, whose addresses are looked up once."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._bytes = np.frombuffer(mapped, np.uint8)  # keeps the map open
        self._address: int = self._bytes.__array_interface__["data"][0]

    def releasing(self, start: int, stop: int) -> Callable[[], bool]:
        """Return a quick call that releases the pages of these bytes.

        It returns whether the system did so.
        """
        return self._advising(start, stop, _DONTNEED)

    def release(self, start: int, stop: int) -> bool:
        """Release the pages of these bytes; return whether the system did so."""
        return self.releasing(start, stop)()

    def populate(self, start: int, stop: int, resident: bool = False) -> bool:
        """Read these bytes from disk and map their pages; return whether there are such bytes.

        The system is asked to read, unless they are ``resident``: asking it costs as much as
        mapping. One byte in 64 KiB is used: the system then maps the pages around it, in one go.
        numpy does not hold the GIL for more than 500 of them.
        """
        start, stop = max(0, start), min(stop, len(self._bytes))
        if start >= stop:
            return False
        if not resident:
            self._advising(start, stop, _WILLNEED)()
        step = min(_MAPPED_AT_ONCE, max(1, (stop - start) // _WITHOUT_GIL))
        self._bytes[start:stop:step].max()
        return True

    def is_resident(self, start: int, stop: int) -> bool:
        """Return whether a few pages of these bytes, from the first to the last, are in memory.

        Of files of other users, Linux says so always; see :func:`is_own`.
        """
        call = _system_call("mincore", ctypes.c_char_p)
        start, stop = max(0, start), min(stop, len(self._bytes))
        if call is None or start >= stop:
            return False
        found = ctypes.create_string_buffer(1)
        first, last = start // mmap.PAGESIZE, (stop - 1) // mmap.PAGESIZE
        for number in range(_SAMPLES):
            page = first + (last - first) * number // (_SAMPLES - 1)
            if call(self._address + page * mmap.PAGESIZE, 1, found) or not found.raw[0] & 1:
                return False
        return True

    def _advising(self, start: int, stop: int, advice: int | None) -> Callable[[], bool]:
        call = _system_call("madvise", ctypes.c_int)
        first = max(0, start) // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(-(-stop // mmap.PAGESIZE) * mmap.PAGESIZE, len(self._bytes))
        if call is None or advice is None or start >= stop or first >= last:
            return bool
        address, size, opened = self._address + first, last - first, self._bytes

        def advise() -> bool:
            return call(address, size, advice) == 0 and len(opened) > 0

        return advise


def is_own(owner: int) -> bool:
    """Return whether a user is that of this process."""
    return os.geteuid() == owner
