"""Making very many small objects at once."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def many_objects() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking over what is being made.

    A hundred thousand names are a million small objects, none of which is part of a cycle, and the
    collector would look at all of them again and again. Other threads may run meanwhile; they are
    collected a moment later.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
