"""The current run, for those who do not want to pass it around."""

from __future__ import annotations

from typing import Any

from sawlog.errors import ArgumentError

_current: Any = None


def set_current(run: Any) -> None:
    """Make a run the current one."""
    global _current
    _current = run


def current() -> Any:
    """The run that ``sawlog.init`` made last.

    Raises:
        ArgumentError: there is none.
    """
    if _current is None:
        raise ArgumentError('There is no run yet. Hint: sawlog.init(project="my_project").')
    return _current
