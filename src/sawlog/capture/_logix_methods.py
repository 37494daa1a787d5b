"""Methods of a run that LogIX has as well, beside ``with run(...)`` and ``run.influence``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from sawlog.errors import CaptureError
from sawlog.influence import LogLoader, Logs
from sawlog.store import RowDataset


class LogixMethods:
    """``start`` and ``end``, ``save``, ``clear``, and stored logs as a dataset."""

    evaluates: bool
    _backend: Any
    _queries: Any
    _log: Logs | None
    _started: contextlib.AbstractContextManager[Any] | None = None

    def __call__(
        self, data_id: Any, *, mask: Any = None, scaler: Any = None, views: int = 1
    ) -> contextlib.AbstractContextManager[Any]:
        """Log a batch; see :meth:`CaptureRun.__call__`."""
        raise NotImplementedError

    def eval(self) -> None:
        """Log queries from now on."""
        raise NotImplementedError

    def finalize(self) -> None:
        """End the pass over the data."""
        raise NotImplementedError

    def _stored(self) -> Logs:
        raise NotImplementedError

    def start(self, data_id: Any, mask: Any = None, *, scaler: Any = None) -> None:
        """Start to log a batch, where a ``with`` does not fit; :meth:`end` ends it."""
        if self._started is not None:
            raise CaptureError("start was called twice. Hint: run.end() ends a batch.")
        started = self(data_id, mask=mask, scaler=scaler)
        started.__enter__()
        self._started = started

    def end(self) -> None:
        """End the batch that :meth:`start` started."""
        if self._started is None:
            raise CaptureError("end was called without a start. Hint: run.start(data_id=ids).")
        started, self._started = self._started, None
        started.__exit__(None, None, None)

    def clear(self) -> None:
        """Forget the model and the queries; files stay.

        A batch that :meth:`start` started is discarded.
        """
        if self._started is not None:
            started, self._started = self._started, None
            with contextlib.suppress(_Discarded):
                started.__exit__(_Discarded, _Discarded(), None)
        self.finalize()
        self._backend = self._queries = self._log = None

    def save(self, enable: bool = True) -> None:
        """Choose whether logs are stored, which is the default; ``save(False)`` is :meth:`eval`."""
        if not enable:
            self.eval()
        elif self.evaluates:
            self.evaluates, self._queries = False, None

    def build_log_dataset(self, columns: str | Sequence[str] | None = None) -> RowDataset:
        """Return all stored logs as a map-style dataset, one item for each example.

        Args:
            columns: the names of logs, such as ``"grad/fc.weight"``; by default all gradients.
        """
        logs = self._stored()
        assert logs.reader is not None
        return logs.reader.dataset(logs.columns if columns is None else columns)

    def build_log_dataloader(
        self, batch_size: int = 64, *, num_workers: int = 0, pin_memory: bool = False
    ) -> LogLoader:
        """Return an iterable over all stored logs, in batches of ``(ids, {layer: rows})``.

        ``num_workers`` and ``pin_memory`` are accepted for LogIX's sake and ignored: rows are read
        from a memory map.
        """
        del num_workers, pin_memory
        return LogLoader(self._stored(), batch_size)

    def __getattr__(self, name: str) -> Any:
        hint = f" Hint: {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""
        raise AttributeError(f"A run has no attribute {name!r}.{hint}")


class _Discarded(Exception):
    """Ends a batch without logging it."""


_ELSEWHERE = {  # attributes of LogIX, and their counterparts here
    "add_lora": "run.setup(compress=64) projects gradients; the model stays as it is",
    "save_lora": "projections are determined by a seed, and need not be saved",
    "add_analysis": "run.influence has the analysis",
    "initialize_from_log": "sawlog.init(project) continues an existing run",
    "watch_activation": 'run.setup(log="forward") logs the inputs of layers',
    "compute_influence": "run.influence.compute_influence(src_log, tgt_log)",
    "compute_influence_all": "run.influence.compute_influence_all(run.get_log())",
    "compute_self_influence": "run.influence.compute_self_influence()",
}
