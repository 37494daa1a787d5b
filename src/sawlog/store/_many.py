"""Making very many small objects at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_MANY = 1000  # names


@contextlib.contextmanager
def many_objects(count: int = _MANY) -> Iterator[None]:
    """Keep the cyclic garbage collector from walking over what is being made.

    A hundred thousand names are a million small objects, none of which is part of a cycle, and the
    collector would look at all of them again and again. Other threads may run meanwhile; they are
    collected a moment later. ``count``: of names; for few of them nothing is done.
    """
    if count < _MANY or not gc.isenabled():
        yield
        return
    try:
        gc.disable()
        yield
    finally:
        gc.enable()
