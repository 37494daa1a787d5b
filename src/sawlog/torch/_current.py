"""The methods of the current run as functions."""

from __future__ import annotations

from typing import Any

from sawlog.capture import Report, set_current
from sawlog.capture import current as current_run
from sawlog.influence import Logs
from sawlog.torch._run import Run


def init(project: str, **options: Any) -> Run:
    """Begin a run, or go on with it; it is the current one from now on.

    See :class:`sawlog.torch.Run` for the options.
    """
    run = Run(project, **options)
    set_current(run)
    return run


def current() -> Run:
    """The run that :func:`init` made last.

    Raises:
        ArgumentError: there is none.
    """
    run: Run = current_run()
    return run


def setup(options: Any = None, /, **more: Any) -> None:
    """Say what the current run logs; see :meth:`sawlog.torch.Run.setup`."""
    current().setup(options, **more)


def watch(model: Any, *args: Any, **options: Any) -> Report:
    """Say what the current run watches; see :meth:`sawlog.torch.Run.watch`."""
    return current().watch(model, *args, **options)


def eval() -> None:
    """Log queries from now on; see :meth:`sawlog.torch.Run.eval`."""
    current().eval()


def get_log() -> Logs:
    """The logs of the last query; see :meth:`sawlog.torch.Run.get_log`."""
    return current().get_log()


def finalize() -> None:
    """End the pass of the current run; see :meth:`sawlog.torch.Run.finalize`."""
    current().finalize()
