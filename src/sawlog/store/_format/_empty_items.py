"""Bound what a file can hold without bytes, so that all work is bounded by the size of files.

An array without bytes still has rows, and each row may be empty strings or empty lists, which an
export writes one by one. A file of 3 KB could have a billion of them. FORMAT.md, section 4, counts
these items, and a segment has at least as many bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

MOST = 1 << 24  # of a segment


class Typed(Protocol):
    """Anything with a dtype and a shape: an array, or a tensor in a file."""

    @property
    def dtype(self) -> np.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def empty_items_of_row(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Return the number of items or empty lists of a row without bytes; 0 if it has bytes.

    >>> empty_items_of_row(np.dtype(float), (2, 3)), empty_items_of_row(np.dtype(float), (2, 0, 3))
    (0, 2)
    """
    if dtype.itemsize and 0 not in shape:
        return 0
    return math.prod(itertools.takewhile(bool, shape))


def empty_items(tensors: Iterable[Typed]) -> int:
    """Return the number of items and empty lists of all tensors without bytes."""
    found = 0
    for each in tensors:
        shape = each.shape
        if (0 in shape or not each.dtype.itemsize) and shape[0]:
            found += shape[0] * empty_items_of_row(each.dtype, shape[1:])
    return found
