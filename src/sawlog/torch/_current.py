"""``sawlog.torch.init``: create a run for PyTorch and make it the current one."""

from __future__ import annotations

from typing import Any

from sawlog._current_run import current as current_run
from sawlog._current_run import set_current
from sawlog.torch._run import Run


def init(project: str, **options: Any) -> Run:
    """Create a run, or continue an existing one, and make it the current run.

    See :class:`sawlog.torch.Run` for the options.
    """
    run = Run(project, **options)
    set_current(run)
    return run


def current() -> Run:
    """Return the run that :func:`init` created last.

    Raises:
        ArgumentError: :func:`init` was not called.
    """
    run: Run = current_run()
    return run
