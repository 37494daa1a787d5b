"""``sawlog.torch.init``: create a run for PyTorch and make it the current one."""

from __future__ import annotations

import os
from typing import Any

from sawlog._current_run import current as current_run
from sawlog._current_run import set_current
from sawlog.run_files._logix_config import is_logix, load
from sawlog.torch._logix._run import LogIX
from sawlog.torch._run import Run


def init(project: str, config: Any = None, **options: Any) -> Run:
    """Create a run, or continue an existing one, and make it the current run.

    See :class:`sawlog.torch.Run` for the options. Where ``config`` has the sections of LogIX, as
    ``lora``, or is an empty file, the run is a :class:`sawlog.logix.LogIX`.
    """
    said = load(config) if isinstance(config, (str, os.PathLike)) else config
    if is_logix(said) or (said == {} and said is not config):
        run: Run = LogIX(project, said, **options)
    else:
        run = Run(project, config=config, **options)
    set_current(run)
    return run


def init_logix(project: str, config: Any = "./config.yaml", **options: Any) -> LogIX:
    """Create a run of LogIX, and make it the current run.

    Without ``config`` it is the file ``config.yaml`` in the current folder, if there is one.
    """
    run = LogIX(project, config, **options)
    set_current(run)
    return run


def add_lora(*args: Any, **options: Any) -> None:
    """Compress gradients from now on; see :meth:`sawlog.logix.LogIX.add_lora`."""
    current().add_lora(*args, **options)


def initialize_from_log(*args: Any, **options: Any) -> None:
    """Take the options of the existing run; see :meth:`sawlog.logix.LogIX.initialize_from_log`."""
    current().initialize_from_log(*args, **options)


def add_analysis(*args: Any, **options: Any) -> None:
    """Accept an analysis, which is not needed: ``run.influence`` has it."""
    current().add_analysis(*args, **options)


def current() -> Run:
    """Return the run that :func:`init` created last.

    Raises:
        ArgumentError: :func:`init` was not called.
    """
    run: Run = current_run()
    return run
