"""The current run, for functions that take none as an argument."""

from __future__ import annotations

from typing import Any

from sawlog.errors import ArgumentError

_current: Any = None


def set_current(run: Any) -> None:
    """Make a run the current one."""
    global _current
    _current = run


def get() -> Any:
    """Return the current run; None before the first ``sawlog.init``."""
    return _current


def current() -> Any:
    """Return the run that ``sawlog.init`` created last.

    Raises:
        ArgumentError: ``sawlog.init`` was not called.
    """
    if _current is None:
        raise ArgumentError('No run is current. Hint: call sawlog.init(project="my_project").')
    return _current
