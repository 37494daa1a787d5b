"""Functions on the current run, named as its methods."""

from __future__ import annotations

from typing import Any

from sawlog._current_run import current as current_run
from sawlog.capture._check import Check
from sawlog.capture._extract import Extraction
from sawlog.influence import LogLoader, Logs
from sawlog.run_files._blocks import Report
from sawlog.store import RowDataset


def setup(options: Any = None, /, **more: Any) -> None:
    """Set the options of the current run; see ``run.setup``."""
    current_run().setup(options, **more)


def watch(model: Any, *args: Any, **options: Any) -> Report:
    """Choose the layers that the current run logs.

    See :meth:`sawlog.torch.Run.watch` and :meth:`sawlog.jax.JaxRun.watch`.
    """
    report: Report = current_run().watch(model, *args, **options)
    return report


def start(data_id: Any, mask: Any = None) -> None:
    """Start to log a batch; see ``run.start``."""
    current_run().start(data_id, mask)


def end(*args: Any, **options: Any) -> None:
    """End the batch that :func:`start` started; see ``run.end``."""
    current_run().end(*args, **options)


def clear() -> None:
    """Forget the model and queries of the current run; see ``run.clear``."""
    current_run().clear()


def build_log_dataset(*args: Any, **options: Any) -> RowDataset:
    """Return all stored logs as a dataset; see ``run.build_log_dataset``."""
    return current_run().build_log_dataset(*args, **options)


def build_log_dataloader(*args: Any, **options: Any) -> LogLoader:
    """Return batches of all stored logs; see ``run.build_log_dataloader``."""
    return current_run().build_log_dataloader(*args, **options)


def extract(*args: Any, **options: Any) -> Extraction:
    """Log every example of a loader; see ``run.extract``."""
    return current_run().extract(*args, **options)


def check(step: Any, batch: Any, **options: Any) -> Check:
    """Compare a batch with its examples run alone; see ``run.check``."""
    return current_run().check(step, batch, **options)


def eval() -> None:
    """Log queries from now on; see ``run.eval``."""
    current_run().eval()


def get_log(*args: Any, **options: Any) -> Logs:
    """Return the logs of the last query; see ``run.get_log``."""
    return current_run().get_log(*args, **options)


def finalize() -> None:
    """End the pass of the current run; see ``run.finalize``."""
    current_run().finalize()
