"""The user's line: the innermost frame of the stack that is not sawlog's own."""

from __future__ import annotations

import os
import sys

import jax

from sawlog.jax import _compat

#: The folder of sawlog, with a separator at its end.
PACKAGE = os.path.join(os.path.abspath(__file__).rpartition(os.path.join("jax", "_core"))[0], "")

_PACKAGES = (PACKAGE, os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), ""))

# JAX names a source line in its errors and in `source_line`: that of the user, not one of sawlog.
_compat.exclude_from_tracebacks(PACKAGE)


def caller() -> str:
    """Return ``file:line (function)`` of the innermost frame outside of sawlog and JAX."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def stack_level() -> int:
    """Return the ``stacklevel`` of ``warnings.warn`` that names a line outside of sawlog and JAX.

    Call it from the function that warns.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    return level
