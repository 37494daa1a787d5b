"""The end of the program, for what was not closed before.

What is registered last runs first, and trackers have functions of their own that run then: a sink
asks to be closed once its tracker is there.
"""

from __future__ import annotations

import atexit
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any


def ended_badly() -> bool:
    """Whether the program is ending by an exception that nobody caught.

    A session at a prompt goes on after an exception, so there it says nothing.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


def close_at_exit(sink: Any) -> Callable[[], None]:
    """Have a sink closed at the end of the program; the function returned calls that off."""
    reference = weakref.ref(sink)

    def close() -> None:
        forgotten = reference()
        if forgotten is None:
            return
        if ended_badly():
            forgotten.fail()
        try:
            forgotten.close()
        except Exception as error:
            warnings.warn(
                f"{forgotten!r} was not closed, and closing it now failed: {error}", stacklevel=1
            )

    atexit.register(close)
    return lambda: atexit.unregister(close)
