"""Pause the garbage collector while very many small objects are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY = 1000  # names


@contextlib.contextmanager
def paused_gc(count: int = _MANY) -> Iterator[None]:
    """Disable the cyclic garbage collector in the block, if ``count`` names are many.

    A hundred thousand names are a million small objects without cycles, which the collector would
    traverse again and again. Garbage of other threads is collected a moment later.
    """
    if count < _MANY or not gc.isenabled():
        yield
        return
    try:
        gc.disable()
        yield
    finally:
        gc.enable()
