"""Ask the system whether a page of a memory map is in memory.

Advice to read a block ahead walks over all of its pages, which takes 4 ms per GB also where
nothing is left to read. One question about a page takes a microsecond.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

import numpy as np


@functools.cache
def _mincore() -> Callable[..., int] | None:
    """Return the system call, or None on a system without it."""
    try:
        found = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    found.restype = ctypes.c_int
    return found


def in_memory(mapped: mmap.mmap, offset: int) -> bool:
    """Return whether the page of a byte is in memory; False if the system does not tell."""
    call = _mincore()
    if call is None or not 0 <= offset < len(mapped):
        return False
    page = offset // mmap.PAGESIZE * mmap.PAGESIZE
    view = np.frombuffer(mapped, np.uint8, count=1, offset=page)
    answer = ctypes.create_string_buffer(1)
    if call(view.ctypes.data, 1, answer):
        return False
    return bool(answer.raw[0] & 1)
