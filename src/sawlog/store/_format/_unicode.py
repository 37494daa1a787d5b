"""Strings of a fixed width, which numpy stores as code points of four bytes each.

Any four bytes fit. numpy cannot return a string with a number beyond the last code point, and a
text file cannot contain a surrogate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

_LAST, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


@functools.lru_cache(1024)
def has_strings(dtype: np.dtype) -> bool:
    """Return whether items of a dtype are such strings, or have fields that are."""
    return dtype.kind == "U" or any(has_strings(dtype[name].base) for name in dtype.names or ())


def is_returnable(array: np.ndarray) -> bool:
    """Return whether numpy can return all strings of an array.

    >>> is_returnable(np.array(["é"])), is_returnable(np.array([1 << 24], "<u4").view("<U1"))
    (True, False)
    """
    return all(int(points.max()) <= _LAST for points in _code_points(array))


def is_unicode(array: np.ndarray) -> bool:
    """Return whether all strings of an array are valid Unicode.

    >>> is_unicode(np.array(["é"])), is_unicode(np.array([chr(0xD800)]))
    (True, False)
    """
    first, last = _SURROGATES
    for points in _code_points(array):
        greatest = int(points.max())
        if greatest > _LAST:
            return False
        if greatest >= first and bool(((points >= first) & (points <= last)).any()):
            return False
    return True


def _code_points(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the code points of an array, or of each of its fields; nothing without bytes."""
    if not array.nbytes or not has_strings(array.dtype):
        return
    if array.dtype.kind == "U":
        order = array.dtype.byteorder
        yield np.ascontiguousarray(array).reshape(-1).view(np.dtype("u4").newbyteorder(order))
    for name in array.dtype.names or ():
        yield from _code_points(array[name])
