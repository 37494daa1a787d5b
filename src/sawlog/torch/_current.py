"""LogIX's module-level functions: the methods of the current run."""

from __future__ import annotations

import os
from typing import Any

from sawlog._current_run import current as current_run
from sawlog._current_run import set_current
from sawlog.capture._check import Check
from sawlog.capture._extract import Extraction
from sawlog.influence import LogLoader, Logs
from sawlog.run_files._blocks import Report
from sawlog.store import RowDataset
from sawlog.torch._logix._config import is_logix, load
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


def init_logix(project: str, config: Any = None, **options: Any) -> LogIX:
    """Create a run of LogIX, and make it the current run."""
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
    """Accepted and not needed: ``run.influence`` has the analysis."""
    current().add_analysis(*args, **options)


def current() -> Run:
    """Return the run that :func:`init` created last.

    Raises:
        ArgumentError: :func:`init` was not called.
    """
    run: Run = current_run()
    return run


def setup(options: Any = None, /, **more: Any) -> None:
    """Set the options of the current run; see :meth:`sawlog.torch.Run.setup`."""
    current().setup(options, **more)


def watch(model: Any, *args: Any, **options: Any) -> Report:
    """Choose the layers that the current run logs; see :meth:`sawlog.torch.Run.watch`."""
    return current().watch(model, *args, **options)


def start(data_id: Any, mask: Any = None) -> None:
    """Start to log a batch; see :meth:`sawlog.torch.Run.start`."""
    current().start(data_id, mask)


def end() -> None:
    """End the batch that :func:`start` started; see :meth:`sawlog.torch.Run.end`."""
    current().end()


def clear() -> None:
    """Forget the model and queries of the current run; see :meth:`sawlog.torch.Run.clear`."""
    current().clear()


def build_log_dataset(*args: Any, **options: Any) -> RowDataset:
    """Return all stored logs as a dataset; see :meth:`sawlog.torch.Run.build_log_dataset`."""
    return current().build_log_dataset(*args, **options)


def build_log_dataloader(*args: Any, **options: Any) -> LogLoader:
    """Return batches of all stored logs; see :meth:`sawlog.torch.Run.build_log_dataloader`."""
    return current().build_log_dataloader(*args, **options)


def extract(step: Any, loader: Any, data_id: Any = None, **options: Any) -> Extraction:
    """Log every example of a loader; see :meth:`sawlog.torch.Run.extract`."""
    return current().extract(step, loader, data_id, **options)


def check(step: Any, batch: Any, **options: Any) -> Check:
    """Compare a batch with its examples run alone; see :meth:`sawlog.torch.Run.check`."""
    return current().check(step, batch, **options)


def eval() -> None:
    """Log queries from now on; see :meth:`sawlog.torch.Run.eval`."""
    current().eval()


def get_log() -> Logs:
    """Return the logs of the last query; see :meth:`sawlog.torch.Run.get_log`."""
    return current().get_log()


def finalize() -> None:
    """End the pass of the current run; see :meth:`sawlog.torch.Run.finalize`."""
    current().finalize()
