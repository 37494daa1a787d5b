"""Advise the system about pages of a memory map, without holding the GIL.

``mmap.madvise`` holds it while the system reads from disk or releases pages, and other threads wait
as long.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import numpy as np

_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_POPULATE_READ = 22 if sys.platform == "linux" else None  # from Linux 5.14 on


@functools.cache
def _madvise() -> Callable[..., int] | None:
    """Return the system call, or None on a system without it."""
    try:
        found = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.restype = ctypes.c_int
    return found


def release(mapped: mmap.mmap, start: int, stop: int) -> bool:
    """Release the pages of these bytes; return whether the system did so."""
    return _advise(mapped, start, stop, _DONTNEED)


def populate(mapped: mmap.mmap, start: int, stop: int) -> bool:
    """Read these bytes from disk and map their pages; return whether the system did so.

    A system that cannot map them ahead only reads them ahead.
    """
    if _advise(mapped, start, stop, _POPULATE_READ):
        return True
    return _advise(mapped, start, stop, _WILLNEED)


def _advise(mapped: mmap.mmap, start: int, stop: int, advice: int | None) -> bool:
    call = _madvise()
    first = max(0, start) // mmap.PAGESIZE * mmap.PAGESIZE
    last = min(-(-stop // mmap.PAGESIZE) * mmap.PAGESIZE, len(mapped))
    if call is None or advice is None or start >= stop or first >= last:
        return False
    base = np.frombuffer(mapped, np.uint8)  # keeps the map open during the call
    return call(base.ctypes.data + first, last - first, advice) == 0
