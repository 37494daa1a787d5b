"""Exit codes, and how errors are reported."""

from __future__ import annotations

import errno
import sys

from sawlog._text import printable_lines
from sawlog.errors import DamagedStoreError, SawlogError

_HINT = "check the path, and who may read and write there."
_HINTS = {
    errno.ENOSPC: "free some space on the disk, and run the command again.",
    errno.EMFILE: "ulimit -n shows how many files a process may open.",
}

OK, DAMAGED, BAD, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def report(error: Exception) -> int:
    """Print an error and its hint on standard error; return the exit code for it."""
    message, _, hint = printable_lines(_message(error)).partition("Hint: ")
    print(f"error: {message.rstrip()}", file=sys.stderr)
    if hint:
        print(f"hint: {hint.strip()}", file=sys.stderr)
    return DAMAGED if isinstance(error, DamagedStoreError) else BAD


def worse(one: int, other: int) -> int:
    """Return the exit code for two outcomes: damage overrides everything else.

    >>> worse(OK, BAD), worse(BAD, DAMAGED), worse(DAMAGED, OK)
    (2, 1, 1)
    """
    return DAMAGED if DAMAGED in (one, other) else max(one, other)


def _message(error: Exception) -> str:
    if isinstance(error, SawlogError) or not isinstance(error, OSError) or not error.strerror:
        return str(error) or type(error).__name__
    said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{said}. Hint: {_HINTS.get(error.errno or 0, _HINT)}"
