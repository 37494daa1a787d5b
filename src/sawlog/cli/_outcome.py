"""Exit codes, and what is said about errors."""

from __future__ import annotations

import sys

from sawlog._text import printable_lines
from sawlog.errors import DamagedStoreError, SawlogError

OK, DAMAGED, BAD, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def report(error: Exception) -> int:
    """Say what went wrong on standard error; returns the exit code for it."""
    said, _, hint = printable_lines(_message(error)).partition("Hint: ")
    print(f"error: {said.rstrip()}", file=sys.stderr)
    if hint:
        print(f"hint: {hint.strip()}", file=sys.stderr)
    return DAMAGED if isinstance(error, DamagedStoreError) else BAD


def worse(one: int, other: int) -> int:
    """The exit code of two outcomes: damage before everything else.

    >>> worse(OK, BAD), worse(BAD, DAMAGED), worse(DAMAGED, OK)
    (2, 1, 1)
    """
    return DAMAGED if DAMAGED in (one, other) else max(one, other)


def _message(error: Exception) -> str:
    if isinstance(error, SawlogError) or not isinstance(error, OSError) or not error.strerror:
        return str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
