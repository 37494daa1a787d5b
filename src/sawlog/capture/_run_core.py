"""``RunCore``: the state of a run: its options, its files, and the batch that is captured."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from sawlog._lifecycle import CloseOnExit, close_at_exit, is_ending
from sawlog._paths import absolute
from sawlog._rich import Console
from sawlog._validate import flag, one_of, positive_integer, positive_number, refuse
from sawlog.capture._backend import ActiveBatch, Backend, BatchRequest, ProcessGroup
from sawlog.capture._capture_pass import CapturePass
from sawlog.capture._data_ids import data_ids
from sawlog.capture._label_sampling import LabelSampling, samples_labels
from sawlog.capture._logix_methods import LogixMethods
from sawlog.capture._metrics import RunMetrics
from sawlog.capture._query_pass import QueryPass
from sawlog.capture._ranks import Ranks
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Influence, Logs
from sawlog.run_files._blocks import Block, Report, compressed
from sawlog.run_files._folders import label_of, logs_of, measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options, read
from sawlog.run_files._replace import replace_run
from sawlog.run_files._saved_options import load_options, save_options
from sawlog.sinks import Sink

StrPath = str | os.PathLike[str]

EXISTS = ("append", "replace", "error")


class RunCore(LogixMethods, CloseOnExit):
    """Everything of :class:`CaptureRun` but loaders; see there for the arguments."""

    def __init__(
        self,
        project: str,
        *,
        root: StrPath = "sawlog",
        exists: str = "append",
        config: Mapping[str, Any] | StrPath | None = None,
        sinks: Sequence[Sink] | None = None,
        distributed: bool = True,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(project, str) or project in ("", "..") or Path(project).name != project:
            refuse("project", "the name of a folder, such as 'my_project'", project)
        one_of("exists", exists, EXISTS)
        self.project = project
        self.path = absolute(root) / project
        self._distributed = flag("distributed", distributed)
        self._timeout = positive_number("timeout", timeout)
        self._shared_by: Ranks | None = None
        ranks = self._ranks()
        if ranks is None:
            self._prepare_folder(exists, for_all=False)
        else:
            ranks.decide(lambda: self._prepare_folder(exists, for_all=True))
        self._metrics = RunMetrics(self.path / "metrics", sinks)
        kept = load_options(self.path)
        self._options = read(config) if config is not None or kept is None else kept[0]
        self._remembered_options: Options | None = None
        self._backend: Backend | None = None
        self._pass: CapturePass | None = None
        self._batch: ActiveBatch | None = None
        self._sampling: LabelSampling | None = None
        self.evaluates = False
        self._queries: QueryPass | None = None
        self._log: Logs | None = None
        self._is_finished = True
        self._has_failed = False
        self._cancel_exit = close_at_exit(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def _prepare_folder(self, exists: str, *, for_all: bool) -> None:
        """Apply ``exists``; ``for_all`` processes of a job, or for this one."""
        if self.path.exists() and exists == "error":
            raise ArgumentError(
                f"The run {self.path} exists. Hint: exists='append' continues it, "
                "exists='replace' starts over."
            )
        if exists == "replace":
            replace_run(self.path, for_all=for_all)

    def _process_group(self) -> ProcessGroup | None:
        """Return the processes of the running distributed job; None outside of one."""
        return None

    def _ranks(self) -> Ranks | None:
        """Return the processes that share this run; None if there is only this one."""
        if self._shared_by is None and self._distributed:
            group = self._process_group()
            self._shared_by = None if group is None else Ranks(group, self.path, self._timeout)
        return self._shared_by

    @property
    def options(self) -> Options:
        """What is logged."""
        return self._options

    @property
    def store_path(self) -> Path:
        """The path of the store of rows for the current options."""
        return logs_of(self.path, self._options)

    @property
    def logs(self) -> Path:
        """Deprecated name of :attr:`store_path`."""
        warnings.warn(
            "run.logs is a path and is now called run.store_path; the old name will be removed in "
            "the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.store_path

    def log(self, *args: Any, **options: Any) -> None:
        """Write values of a Python loop to the sinks of the run.

        ``log(data, /, **steps)`` takes a dict, and ``log(name, value, /, **steps)`` one value.
        Values are tensors, arrays, Python numbers, or nested dicts of them, which are named like
        ``loss/policy``. Every keyword is a step axis, such as ``step=i``; ``where=False`` logs
        nothing. ``sawlog.log`` does the same for the current run.

        Raises:
            LogValueError: the arguments have another form, or a value is not an array or number.
            ArgumentError: the sinks of the run are closed.

        >>> import tempfile, sawlog
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.log({"loss": {"policy": 0.5}}, step=0)
        >>> run.finalize()
        >>> sawlog.store.open(run.path / "metrics").read("loss/policy")
        array([0.5])
        """
        self._metrics.log(args, options)

    # -- what to log ------------------------------------------------------------------------------

    def setup(
        self, options: Options | Mapping[str, Any] | StrPath | None = None, /, **more: Any
    ) -> None:
        """Set the options: a dict, the path of a YAML file, or keywords.

        See :class:`sawlog.capture.Options`. Call it again after :meth:`finalize` for another pass
        over the data.

        Raises:
            ArgumentError: an unknown option, value or combination; or a pass is running.
        """
        self._check_idle("setup")
        self._options = read(options, **more)
        self.evaluates, self._queries, self._is_finished = False, None, False

    def _watch(self, backend: Backend, quiet: bool) -> Report:
        """Watch a model; shows a table of its layers unless ``quiet``."""
        self._backend, self._queries, self._is_finished = backend, None, False
        report = Report(tuple(self._blocks()), self._options.dtype, backend.skipped)
        if not quiet:
            Console(stderr=True).print(report)
        return report

    def _check_idle(self, called: str) -> None:
        if self._pass is not None:
            raise ArgumentError(
                f"{called} was called while examples are being logged. Hint: call run.finalize() "
                "first."
            )

    def _watched_model(self) -> Backend:
        if self._backend is None:
            raise ArgumentError("No model is watched yet. Hint: run.watch(model).")
        return self._backend

    def _blocks(self) -> list[Block]:
        blocks = self._watched_model().blocks
        return compressed(blocks, self._options.compress, self._options.dtype)

    # -- logging ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def __call__(
        self, data_id: Any, *, mask: Any = None, scaler: Any = None, views: int = 1
    ) -> Iterator[Self]:
        """Log the batch whose forward and backward pass run inside the ``with``.

        Args:
            data_id: one id for each example: integers, strings, or the inputs themselves, which
                are then identified by a hash of their content.
            mask: which positions of each example count, ``[batch, positions]``: the others are
                left out of statistics and of the count for ``reduction="tokens"``.
            scaler: the ``torch.amp.GradScaler`` of the loss; not needed if ``scaler.scale(loss)``
                is called inside the ``with``.
            views: how many times the batch was concatenated with itself, as ``cat([x, x2])`` of
                two augmentations of the same examples.

        Raises:
            ArgumentError: the ids are invalid, or :meth:`watch` was not called.
            DuplicateIdError: an id was logged before in this run.
            CaptureError: the gradients of the examples cannot be separated.
        """
        if self._batch is not None:
            raise CaptureError(
                "Another batch is being logged. Hint: `with run(...)` cannot be nested."
            )
        positive_integer("views", views)
        ids = data_ids(data_id, once=self.evaluates or self._options.duplicates == "error")
        request = BatchRequest(len(ids), None, mask, scaler, views)
        if self.evaluates:
            with self._query(ids, request):
                yield self
            return
        current = self._current_pass()
        todo = current.todo(ids)
        if not todo.any():
            empty = contextlib.nullcontext() if len(ids) else self._without_examples()
            with self._watched_model().gathered(), empty:
                yield self
            return
        some = None if todo.all() else todo
        batch = current.batch(BatchRequest(len(ids), some, mask, scaler, views))
        with self._capturing(batch), self._sampling_labels(ids):
            yield self
        current.finish(batch, ids[todo])

    def _without_examples(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for a batch without ids, in which no example may be computed."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _sampling_labels(self, ids: np.ndarray) -> Iterator[None]:
        """Draw labels from the model inside the ``with``, where the options need them."""
        if not samples_labels(self._options):
            yield
            return
        self._sampling = LabelSampling(self._options.fisher_seed, ids)
        try:
            yield
            self._sampling.check_used()
        finally:
            self._sampling = None

    @contextlib.contextmanager
    def _capturing(self, batch: ActiveBatch) -> Iterator[None]:
        """Capture what happens inside the ``with``, as the batch of this run."""
        self._batch = batch
        try:
            with self._watched_model().gathered(), batch.watching():
                yield
        finally:
            self._batch = None

    def _current_pass(self) -> CapturePass:
        """Return the pass over the data that runs now; begin one if none does."""
        if self._pass is None:
            backend, blocks = self._watched_model(), self._blocks()
            total = getattr(backend, "parameter_count", None)
            options = self._remembered_options or self._options
            save_options(self.path, options, blocks, backend.skipped, total)
            ranks = self._ranks()
            if ranks is not None and self._remembered_options is None:  # not in run.extract
                ranks.begin()
            self._is_finished = False
            self._pass = CapturePass(self.path, self.project, self._options, backend, blocks, ranks)
        return self._pass

    # -- queries ----------------------------------------------------------------------------------

    def eval(self) -> None:
        """Log queries from now on: they are not stored, and :meth:`get_log` returns them.

        :meth:`setup` returns to logging for the store.
        """
        self._end_pass()
        self.evaluates = True

    @contextlib.contextmanager
    def _query(self, ids: np.ndarray, request: BatchRequest) -> Iterator[None]:
        if self._queries is None:
            backend, blocks = self._watched_model(), self._blocks()
            self._queries = QueryPass(self.path, self._options, backend, blocks)
        batch = self._queries.batch(request)
        with self._capturing(batch):
            yield
        self._log = self._queries.finish(batch, ids)

    def get_log(self) -> Logs:
        """Return the logs of the last batch of queries.

        Raises:
            ArgumentError: no query was logged; call :meth:`eval` first.
            CaptureError: called inside ``with run(...)``.
        """
        if self._batch is not None:
            raise CaptureError(
                "get_log was called inside `with run(...)`, where the logs of the batch are not "
                "complete. Hint: call it after the `with`."
            )
        if self._log is None:
            raise ArgumentError(
                "No query was logged yet. Hint: run.eval(), then `with run(data_id=ids): "
                "loss.backward()`, then run.get_log()."
            )
        return self._log

    @property
    def influence(self) -> Influence:
        """Influence of the stored examples on queries; its methods finalize the pass first."""
        return Influence(self._stored)

    def _stored(self) -> Logs:
        """Finalize the pass and return the stored logs."""
        self._end_pass()
        return Logs(self.store_path)

    # -- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything logged so far to disk."""
        self._metrics.flush()
        if self._pass is not None:
            self._pass.flush()

    def finalize(self) -> None:
        """End the pass over the data: all rows are on disk, and statistics can be read.

        In a job of several processes every process calls it, also one without examples, and waits
        for the others.

        Raises:
            ProcessLostError: another process ended, or did not arrive in time.
        """
        self._end_pass(together=self._backend is not None and not self._is_finished)

    def _end_pass(self, *, together: bool = False) -> None:
        """End the pass, and wait for the other processes that log examples in it.

        Args:
            together: whether all processes are known to call this now, also those without
                examples.
        """
        if self._batch is not None:
            raise CaptureError(
                "finalize was called inside `with run(...)`. Hint: call it after the `with`."
            )
        ranks, logged = self._ranks(), self._pass is not None
        if self._pass is not None:
            self._pass.close()
            self._pass = None
        self._metrics.finalize()
        if ranks is None or self._has_failed or is_ending():
            return
        if together or logged or (not self._is_finished and ranks.has_begun()):
            ranks.meet("run.finalize()")
        self._is_finished = True

    def close(self) -> None:
        """Finalize, and close the sinks."""
        self.finalize()
        self._metrics.close()

    def fail(self) -> None:
        """Mark the stores as those of a failed program when they are closed."""
        self._has_failed = True
        self._metrics.fail()
        if self._pass is not None:
            self._pass.fail()

    @property
    def statistics(self) -> Measured:
        """The statistics of all passes with the current compression.

        Raises:
            ArgumentError: nothing was measured.
        """
        self.flush()
        if self._backend is not None:
            blocks = self._blocks()
        else:
            kept = load_options(self.path)
            if kept is None:
                raise ArgumentError("No model is watched yet. Hint: run.watch(model).")
            blocks = kept[1]
        found = measured(self.path, label_of(self._options), blocks)
        if found is None:
            raise ArgumentError("Nothing was measured. Hint: run.setup(statistic=...).")
        return found
