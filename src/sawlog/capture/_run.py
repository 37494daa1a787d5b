"""``CaptureRun``: one model watched over a set of examples, its logs in a folder."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from sawlog import _progress
from sawlog._lifecycle import CloseOnExit, close_at_exit
from sawlog._paths import absolute
from sawlog._rich import Console
from sawlog._validate import one_of, positive_integer, refuse
from sawlog.capture._backend import ActiveBatch, Backend, BatchRequest, CutOne, Step
from sawlog.capture._batches import DataId, named_batches
from sawlog.capture._capture_pass import CapturePass
from sawlog.capture._check import Check
from sawlog.capture._data_ids import data_ids
from sawlog.capture._extract import Extraction, ExtractionJob, Mask
from sawlog.capture._logix_methods import LogixMethods
from sawlog.capture._metrics import RunMetrics
from sawlog.capture._query_pass import QueryPass
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Influence, Logs
from sawlog.run_files._blocks import Block, Report, compressed
from sawlog.run_files._folders import label_of, logs_of, measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options, read
from sawlog.run_files._remembered import remember, remembered
from sawlog.run_files._replace import replace_run
from sawlog.sinks import Sink

StrPath = str | os.PathLike[str]

EXISTS = ("append", "replace", "error")


class CaptureRun(LogixMethods, CloseOnExit):
    """A run without a framework: options, ids, passes, queries and files.

    A framework's run, such as :class:`sawlog.torch.Run`, adds ``watch``, which creates a
    :class:`Backend` and passes it to :meth:`_watch`.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        exists: what to do if the run exists: ``"append"`` continues it and skips the examples that
            it has; ``"replace"`` deletes it; ``"error"`` raises.
        config: initial options, as for :meth:`setup`; None takes those that an existing run was
            last set up with.
        sinks: where :meth:`log` writes; by default a store in the folder ``metrics`` of the run.
    """

    def __init__(
        self,
        project: str,
        *,
        root: StrPath = "sawlog",
        exists: str = "append",
        config: Mapping[str, Any] | StrPath | None = None,
        sinks: Sequence[Sink] | None = None,
    ) -> None:
        if not isinstance(project, str) or project in ("", "..") or Path(project).name != project:
            refuse("project", "the name of a folder, such as 'my_project'", project)
        one_of("exists", exists, EXISTS)
        self.project = project
        self.path = absolute(root) / project
        if self.path.exists() and exists == "error":
            raise ArgumentError(
                f"The run {self.path} exists. Hint: exists='append' continues it, "
                "exists='replace' starts over."
            )
        if exists == "replace":
            replace_run(self.path)
        self._metrics = RunMetrics(self.path / "metrics", sinks)
        kept = remembered(self.path)
        self._options = read(config) if config is not None or kept is None else kept[0]
        self._remembered_options: Options | None = None
        self._backend: Backend | None = None
        self._pass: CapturePass | None = None
        self._batch: ActiveBatch | None = None
        self.evaluates = False
        self._queries: QueryPass | None = None
        self._log: Logs | None = None
        self._cancel_exit = close_at_exit(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

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
        self.evaluates, self._queries = False, None

    def _watch(self, backend: Backend, quiet: bool) -> Report:
        """Watch a model; shows a table of its layers unless ``quiet``."""
        self._backend, self._queries = backend, None
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
        ids = data_ids(data_id)
        request = BatchRequest(len(ids), None, mask, scaler, views)
        if self.evaluates:
            with self._query(ids, request):
                yield self
            return
        now = self._start()
        todo = now.todo(ids)
        if not len(ids) or not todo.any():
            yield self
            return
        some = None if todo.all() else todo
        batch = now.batch(BatchRequest(len(ids), some, mask, scaler, views))
        with self._capturing(batch):
            yield self
        now.finish(batch, ids[todo])

    @contextlib.contextmanager
    def _capturing(self, batch: ActiveBatch) -> Iterator[None]:
        """Capture what happens inside the ``with``, as the batch of this run."""
        self._batch = batch
        try:
            with batch.watching():
                yield
        finally:
            self._batch = None

    def _start(self) -> CapturePass:
        if self._pass is None:
            backend, blocks = self._watched_model(), self._blocks()
            remember(self.path, self._remembered_options or self._options, blocks)
            self._pass = CapturePass(self.path, self.project, self._options, backend, blocks)
        return self._pass

    # -- queries ----------------------------------------------------------------------------------

    def eval(self) -> None:
        """Log queries from now on: they are not stored, and :meth:`get_log` returns them.

        :meth:`setup` returns to logging for the store.
        """
        self.finalize()
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
        self.finalize()
        return Logs(self.store_path)

    # -- loaders ----------------------------------------------------------------------------------

    def missing(self, data_id: Any) -> np.ndarray:
        """Return the ids that are not logged yet, in order."""
        ids = data_ids(data_id)
        return ids[self._start().seen.missing(ids)]

    def batches(
        self,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        total: int | None = None,
        quiet: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of a loader that are not logged yet, with a progress bar.

        Args:
            loader: an iterable of batches.
            data_id: a function from a batch to its ids, or the key of the ids in a batch, such as
                ``"id"``. None numbers the examples: by their positions in the dataset of a
                ``DataLoader``, also where it shuffles; from 0 on, in their order, for any other
                iterable, whose order must then always be the same.
            total: the number of batches, if the loader has no length.
            quiet: whether to hide the progress bar.

        Yields:
            ``(ids, batch)``, for ``with run(data_id=ids): ...``
        """
        yield from self._batches(loader, data_id, f"logging {self.project}", quiet, total)

    def _batches(
        self,
        loader: Iterable[Any],
        data_id: DataId,
        title: str,
        quiet: bool,
        total: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        now = None if self.evaluates else self._start()
        if total is None:
            with contextlib.suppress(TypeError):  # streams have no length
                total = len(loader)  # type: ignore[arg-type]
        with _progress.shown(title, total, quiet=quiet) as bar:
            for ids, batch in named_batches(self._watched_model(), loader, data_id):
                new = now is None or bool(now.seen.missing(ids).any())
                if new:
                    yield ids, batch
                bar.step(len(ids) if new else 0, 0 if now is None else now.nbytes)

    def extract(
        self,
        step: Step,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        mask: Mask = None,
        check: bool = True,
        one: CutOne = None,
        quiet: bool = False,
    ) -> Extraction:
        """Log every example of a loader, in as many passes as the options need.

        PCA projections need a pass for covariances, EK-FAC a pass for K-FAC before its own.
        Examples that are logged already are skipped. The first batch is checked as :meth:`check`
        does; if its examples alone give other gradients, nothing is logged. After :meth:`eval` the
        examples are queries, and :meth:`get_log` returns all of them.

        Args:
            step: ``step(model, batch)`` returns the loss of the batch, or the losses of its
                examples, ``[batch]``.
            loader: an iterable of batches, read once for each pass.
            data_id: as for :meth:`batches`.
            mask: which positions count, as for ``run(data_id, mask=...)``: a function of the
                batch, or the key of the mask in it.
            check: whether to check the first batch.
            one: how the check cuts an example out of a batch, ``one(batch, i)``; None handles
                tensors, lists, dicts and dataclasses.
            quiet: whether to hide progress bars.

        Raises:
            CaptureError: the check found differences, or examples cannot be separated.
            ArgumentError: a step returned no loss, or a loader cannot be read again.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Linear(3, 2)
        >>> loader = torch.utils.data.DataLoader(torch.randn(10, 3), 4, shuffle=True)
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.setup(statistic="ekfac", compress={"kind": "pca", "rank": 2})
        >>> report = run.watch(model, quiet=True)
        >>> run.extract(lambda model, x: (model(x) ** 2).mean(), loader).passes
        ('covariances', 'K-FAC', 'EK-FAC and rows')
        """
        return ExtractionJob(self, step, loader, data_id, mask, one, quiet).run_all(check)

    @contextlib.contextmanager
    def _with_options(self, options: Options) -> Iterator[None]:
        """Run one pass of an extraction with options of its own; queries keep those of the run."""
        if self.evaluates:
            yield
            return
        self.finalize()
        wanted = self._options
        self._options, self._remembered_options = options, wanted
        try:
            yield
        finally:
            self.finalize()
            self._options, self._remembered_options = wanted, None

    def _wait_for_processes(self) -> None:
        """Wait for the other processes of a job: the next pass uses what all of them measured."""
        group = self._watched_model().process_group()
        if group is not None:
            group.wait()

    def check(
        self,
        step: Step,
        batch: Any,
        *,
        examples: int = 4,
        mask: Any = None,
        one: CutOne = None,
        tolerance: float | None = None,
        raises: bool = False,
        quiet: bool = False,
    ) -> Check:
        """Run some examples of a batch alone, and compare gradients and losses with the batch.

        The logged gradients of each layer are compared with plain autograd on a batch of one. The
        model, its gradients and the random state stay as they are.

        Args:
            step: as for :meth:`extract`.
            batch: a batch: a tensor, list, dict, dataclass, or any nesting of them.
            examples: how many of its examples to run alone.
            mask: as for ``run(data_id, mask=...)``.
            one: how to cut an example out of the batch, ``one(batch, i)``.
            tolerance: the relative error up to which gradients count as equal; by default that of
                rounding in the dtype of the model.
            raises: whether differences are an error.
            quiet: whether to hide the table.

        Raises:
            CaptureError: there are differences, and ``raises`` is true.
            ArgumentError: the batch cannot be cut into examples.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> report = run.watch(model, quiet=True)
        >>> run.check(lambda model, x: (model(x) ** 2).mean(), torch.randn(5, 3), quiet=True).ok
        True
        """
        found = self._watched_model().check(
            self, step, batch, mask=mask, examples=examples, one=one, tolerance=tolerance
        )
        if not quiet:
            Console(stderr=True).print(found)
        if raises and not found.ok:
            raise CaptureError(found.message())
        return found

    # -- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything logged so far to disk."""
        self._metrics.flush()
        if self._pass is not None:
            self._pass.flush()

    def finalize(self) -> None:
        """End the pass over the data: all rows are on disk, and statistics can be read."""
        if self._batch is not None:
            raise CaptureError("finalize was called inside `with run(...)`.")
        if self._pass is not None:
            self._pass.close()
            self._pass = None
        self._metrics.finalize()

    def close(self) -> None:
        """Finalize, and close the sinks."""
        self.finalize()
        self._metrics.close()

    def fail(self) -> None:
        """Mark the stores as those of a failed program when they are closed."""
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
            kept = remembered(self.path)
            if kept is None:
                raise ArgumentError("No model is watched yet. Hint: run.watch(model).")
            blocks = kept[1]
        found = measured(self.path, label_of(self._options), blocks)
        if found is None:
            raise ArgumentError("Nothing was measured. Hint: run.setup(statistic=...).")
        return found
