"""The current run, for those who do not want to pass it around."""

from __future__ import annotations

from typing import Any

from sawlog.capture import Report
from sawlog.errors import ArgumentError
from sawlog.torch._run import Run

_current: Run | None = None


def init(project: str, **options: Any) -> Run:
    """Begin a run, or go on with it; it is the current one from now on.

    See :class:`sawlog.torch.Run` for the options.
    """
    global _current
    _current = Run(project, **options)
    return _current


def current() -> Run:
    """The run that :func:`init` made last.

    Raises:
        ArgumentError: there is none.
    """
    if _current is None:
        raise ArgumentError('There is no run yet. Hint: sawlog.init(project="my_project").')
    return _current


def setup(options: Any = None, /, **more: Any) -> None:
    """Say what the current run logs; see :meth:`sawlog.torch.Run.setup`."""
    current().setup(options, **more)


def watch(model: Any, *args: Any, **options: Any) -> Report:
    """Say what the current run watches; see :meth:`sawlog.torch.Run.watch`."""
    return current().watch(model, *args, **options)


def finalize() -> None:
    """End the pass of the current run; see :meth:`sawlog.torch.Run.finalize`."""
    current().finalize()
