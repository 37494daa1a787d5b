"""A run: one model watched over a set of examples, its logs in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sawlog import _progress as progress
from sawlog._lifecycle import close_at_exit
from sawlog._paths import absolute
from sawlog._rich import Console
from sawlog.capture._data_ids import data_ids
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Influence, LogLoader, Logs
from sawlog.run_files._blocks import Block, Report, compressed
from sawlog.run_files._folders import label_of, logs_of, measured
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Options, read
from sawlog.run_files._remembered import remember, remembered
from sawlog.run_files._replace import replace_run
from sawlog.store import RowDataset
from sawlog.torch._batches import DataId, named_batches
from sawlog.torch._capture import Gathering
from sawlog.torch._check import Check, Step
from sawlog.torch._extract import Extraction, Mask, One, examine, extract
from sawlog.torch._fingerprint import Fingerprint
from sawlog.torch._names import bare
from sawlog.torch._pass import Asking, Pass
from sawlog.torch._watched import Names, Watched, look_at

StrPath = str | os.PathLike[str]

EXISTS = ("append", "replace", "error")


class Run:
    """Logs what a model does for each single example.

    Args:
        project: the name of the run, a folder in ``root``.
        root: where runs are.
        exists: what to do if there is such a run: ``"append"``: go on with it, and leave out the
            examples that it has; ``"replace"`` it; or ``"error"``.
        config: options to begin with, as for :meth:`setup`; None takes those that a run at this
            path was set up with last.

    >>> import tempfile, torch, sawlog
    >>> model = torch.nn.Linear(3, 2)
    >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
    >>> run.setup({"log": "grad", "save": "grad", "statistic": "kfac"})
    >>> report = run.watch(model, quiet=True)
    >>> with run(data_id=["a", "b"]):
    ...     model(torch.ones(2, 3)).sum().backward()
    >>> run.finalize()
    >>> sawlog.store.open(run.logs).gather(["b"])["grad/weight"].shape
    (1, 2, 4)
    """

    def __init__(
        self,
        project: str,
        *,
        root: StrPath = "sawlog",
        exists: str = "append",
        config: Mapping[str, Any] | StrPath | None = None,
    ) -> None:
        if not isinstance(project, str) or project in ("", "..") or Path(project).name != project:
            raise ArgumentError(
                f"project is the name of a folder, as 'my_project', got {project!r}."
            )
        if exists not in EXISTS:
            listed = ", ".join(map(repr, EXISTS))
            raise ArgumentError(f"exists is one of {listed}, got {exists!r}.")
        self.project = project
        self.path = absolute(root) / project
        if self.path.exists() and exists == "error":
            raise ArgumentError(
                f"There is a run at {self.path} already. Hint: exists='append' goes on with it, "
                "exists='replace' starts anew."
            )
        if exists == "replace":
            replace_run(self.path)
        kept = remembered(self.path)
        self._options = read(config) if config is not None or kept is None else kept[0]
        self._asked: Options | None = None
        self._given: nn.Module | None = None
        self._model: nn.Module | None = None
        self._watched: Watched | None = None
        self._fingerprint: Fingerprint | None = None
        self._axis = 0
        self._pass: Pass | None = None
        self._batch: Gathering | None = None
        self._begun: contextlib.AbstractContextManager[Any] | None = None
        self._evaluates = False
        self._asking: Asking | None = None
        self._log: Logs | None = None
        self._call_off = close_at_exit(self)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def options(self) -> Options:
        """What is logged."""
        return self._options

    @property
    def logs(self) -> Path:
        """The store of the rows, as the options are now."""
        return logs_of(self.path, self._options)

    # -- what to log ------------------------------------------------------------------------------

    def setup(
        self, options: Options | Mapping[str, Any] | StrPath | None = None, /, **more: Any
    ) -> None:
        """Say what is logged: a dict, the path of a YAML file, or keywords.

        See :class:`sawlog.capture.Options`. It may be called again after :meth:`finalize`, for
        another pass over the data.

        Raises:
            ArgumentError: an unknown option, value or combination; or a pass is under way.
        """
        if self._pass is not None:
            raise ArgumentError(
                "setup was called while examples are being logged. Hint: call run.finalize() first."
            )
        self._options = read(options, **more)
        self._evaluates, self._asking = False, None

    def watch(
        self,
        model: nn.Module,
        names: Names = None,
        types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
        *,
        uncovered: str = "error",
        batch_axis: int = 0,
        quiet: bool = False,
        name_filter: str | Sequence[str] | None = None,
        type_filter: Sequence[type[nn.Module]] | None = None,
    ) -> Report:
        """Say which layers of which model; shows a table of what that takes.

        Args:
            model: it stays as it is; hooks are on it only inside of ``with run(...)``.
            names: patterns of names of modules or parameters, as ``["encoder.*"]``, or a function.
            types: types of modules, as ``[nn.Linear]``.
            uncovered: what to do about parameters that no rule covers: ``"error"``, ``"skip"``, or
                ``"func"``: differentiate their module example by example with ``torch.func``.
            batch_axis: 1 where the sequence comes before the examples.
            quiet: whether to show no table.
            name_filter, type_filter: as of LogIX: parts of names, and types.

        Raises:
            ArgumentError: there is nothing to watch.
            UncoveredError: no rule covers some parameters; names them all.
        """
        if self._pass is not None:
            raise ArgumentError(
                "watch was called while examples are being logged. Hint: call run.finalize() first."
            )
        if name_filter is not None:
            parts = [name_filter] if isinstance(name_filter, str) else name_filter
            names = [f"*{part}*" for part in parts]
        types = types if type_filter is None else type_filter
        if batch_axis not in (0, 1):
            raise ArgumentError(f"batch_axis is 0 or 1, got {batch_axis!r}.")
        self._given = model
        if isinstance(model, nn.Module):
            model = bare(model)
        self._watched, self._model = look_at(model, names, types, uncovered), model
        self._fingerprint = Fingerprint(model)
        self._axis, self._asking = batch_axis, None
        report = Report(tuple(self._blocks()), self._options.dtype, self._watched.skipped)
        if not quiet:
            Console(stderr=True).print(report)
        return report

    def _blocks(self) -> list[Block]:
        assert self._watched is not None
        return compressed(self._watched.blocks, self._options.compress, self._options.dtype)

    # -- logging ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def __call__(
        self, data_id: Any, *, mask: Any = None, scaler: Any = None, views: int = 1
    ) -> Iterator[Run]:
        """Log the batch whose forward and backward pass run inside of the ``with``.

        Args:
            data_id: one id for each example: whole numbers, texts, or the inputs themselves, which
                are then named by a hash of their content.
            mask: which positions of each example count, ``[batch, positions]``: the others are not
                in statistics, and not counted by ``reduction="tokens"``.
            scaler: the ``torch.amp.GradScaler`` that the loss is scaled with; it need not be
                given if ``scaler.scale(loss)`` is called inside of the ``with``.
            views: how many times the batch was concatenated with itself, as ``cat([x, x2])`` of
                two augmentations of the same examples.

        Raises:
            ArgumentError: the ids are none, or :meth:`watch` was not called.
            DuplicateIdError: an id was logged before in this run.
            CaptureError: what the model did cannot be logged.
        """
        if self._batch is not None:
            raise CaptureError(
                "One batch is being logged already. Hint: `with run(...)` cannot be nested."
            )
        if not isinstance(views, int) or views < 1:
            raise ArgumentError(f"views is a number from 1 on, got {views!r}.")
        ids = data_ids(data_id)
        if self._evaluates:
            with self._query(ids, _mask(mask, len(ids)), scaler, views):
                yield self
            return
        now = self._start()
        todo = now.todo(ids)
        if not len(ids) or not todo.any():
            yield self
            return
        self._batch = batch = now.gathering(
            len(ids),
            None if todo.all() else torch.from_numpy(todo),
            _mask(mask, len(ids)),
            scaler,
            views,
        )
        try:
            with batch.watching():
                yield self
        finally:
            self._batch = None
        now.finish(batch, ids[todo])

    def backward(self, loss: Tensor) -> None:
        """Walk back from the loss only as far as the logs need: parameters get no ``.grad``.

        Where nothing is trained, this takes the place of ``loss.backward()``, and is faster: the
        gradients of the weights are never computed.
        """
        if self._batch is None:
            if self._pass is not None:
                return  # all examples of the batch are there already
            raise CaptureError("run.backward(loss) belongs inside of `with run(data_id=ids):`.")
        self._batch.backward(loss)

    # -- queries ----------------------------------------------------------------------------------

    def eval(self) -> None:
        """Log queries from now on: they are not stored, and :meth:`get_log` has them.

        :meth:`setup` goes back to logging for the store.
        """
        self.finalize()
        self._evaluates = True

    @contextlib.contextmanager
    def _query(
        self, ids: np.ndarray, mask: Tensor | None, scaler: Any, views: int
    ) -> Iterator[None]:
        """One batch of queries: with the same layers and compression, and no trace on disk."""
        if self._watched is None:
            raise ArgumentError("There is no model yet. Hint: run.watch(model).")
        watched = self._watched.with_blocks(self._blocks())
        if self._asking is None:
            assert self._fingerprint is not None
            self._asking = Asking(self.path, self._options, watched, self._axis, self._fingerprint)
        self._batch = batch = self._asking.gathering(len(ids), None, mask, scaler, views)
        try:
            with batch.watching():
                yield
        finally:
            self._batch = None
        self._log = self._asking.log(batch, ids)

    def get_log(self) -> Logs:
        """The logs of the last batch of queries.

        Raises:
            ArgumentError: there is none; :meth:`eval` begins.
            CaptureError: the batch is being logged still.
        """
        if self._batch is not None:
            raise CaptureError(
                "get_log was called inside of `with run(...)`, where the logs of the batch are not "
                "complete. Hint: call it after the `with`."
            )
        if self._log is None:
            raise ArgumentError(
                "No query was logged yet. Hint: run.eval(), then `with run(data_id=ids): "
                "loss.backward()`, then run.get_log()."
            )
        return self._log

    def build_log_dataset(self, columns: str | Sequence[str] | None = None) -> RowDataset:
        """All that is stored as a dataset of torch, one item for each example.

        Args:
            columns: the names of logs, as ``"grad/fc.weight"``; by default all gradients.
        """
        self.finalize()
        logs = Logs(self.logs)
        assert logs.reader is not None
        return logs.reader.dataset(logs.columns if columns is None else columns)

    def build_log_dataloader(
        self, batch_size: int = 64, *, num_workers: int = 0, pin_memory: bool = False
    ) -> LogLoader:
        """Goes through all that is stored, in batches of ``(ids, {layer: rows})``.

        ``num_workers`` and ``pin_memory`` are taken for LogIX's sake; rows come from a memory map.
        """
        del num_workers, pin_memory
        self.finalize()
        return LogLoader(Logs(self.logs), batch_size)

    # -- without a `with` -------------------------------------------------------------------------

    def start(self, data_id: Any, mask: Any = None, *, scaler: Any = None) -> None:
        """Begin to log a batch, where a ``with`` does not fit; :meth:`end` ends it."""
        if self._begun is not None:
            raise CaptureError("start was called twice. Hint: run.end() ends a batch.")
        begun = self(data_id, mask=mask, scaler=scaler)
        begun.__enter__()
        self._begun = begun

    def end(self) -> None:
        """End the batch that :meth:`start` began."""
        if self._begun is None:
            raise CaptureError("end was called without a start. Hint: run.start(data_id=ids).")
        begun, self._begun = self._begun, None
        begun.__exit__(None, None, None)

    def clear(self) -> None:
        """Forget the model and the queries; what is on disk stays.

        A batch that :meth:`start` began is given up, and nothing of it is logged.
        """
        if self._begun is not None:
            begun, self._begun = self._begun, None
            with contextlib.suppress(_GivenUp):
                begun.__exit__(_GivenUp, _GivenUp(), None)
        self.finalize()
        self._given = self._model = self._watched = self._fingerprint = None
        self._asking = self._log = None

    def save(self, enable: bool = True) -> None:
        """As of LogIX: ``save(False)`` is :meth:`eval`; logs are stored unless that was called."""
        if not enable:
            self.eval()
        elif self._evaluates:
            self._evaluates, self._asking = False, None

    def __getattr__(self, name: str) -> Any:
        hint = f" Hint: {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""
        raise AttributeError(f"A run has no attribute {name!r}.{hint}")

    @property
    def influence(self) -> Influence:
        """What the stored logs say about queries."""
        self.finalize()
        return Influence(lambda: Logs(self.logs))

    def _start(self) -> Pass:
        if self._pass is None:
            if self._watched is None:
                raise ArgumentError("There is no model yet. Hint: run.watch(model).")
            watched = self._watched.with_blocks(self._blocks())
            assert self._fingerprint is not None
            remember(self.path, self._asked or self._options, watched.blocks)
            self._pass = Pass(
                self.path, self.project, self._options, watched, self._axis, self._fingerprint
            )
        return self._pass

    def missing(self, data_id: Any) -> np.ndarray:
        """Those ids that are not logged yet, in order."""
        ids = data_ids(data_id)
        return ids[self._start().known.missing(ids)]

    def batches(
        self,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        total: int | None = None,
        quiet: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Go through the batches of a loader that are not logged yet, with a progress bar.

        Args:
            loader: batches.
            data_id: a function from a batch to its ids, or what they are called in a batch, as
                ``"id"``. None numbers the examples: by their places in the dataset of a
                ``DataLoader``, also where it shuffles; from 0 on, in their order, for anything
                else, which must then always be the same.
            total: how many batches there are, if the loader does not say.
            quiet: whether to show no progress bar.

        Yields:
            ``(ids, batch)``, for ``with run(data_id=ids): ...``
        """
        yield from self._batches(loader, data_id, f"logging {self.project}", quiet, total)

    def _batches(
        self,
        loader: Iterable[Any],
        data_id: DataId,
        what: str,
        quiet: bool,
        total: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        now = None if self._evaluates else self._start()
        if total is None:
            with contextlib.suppress(TypeError):  # a stream does not know
                total = len(loader)  # type: ignore[arg-type]
        with progress.shown(what, total, quiet=quiet) as bar:
            for ids, batch in named_batches(loader, data_id):
                new = now is None or bool(now.known.missing(ids).any())
                if new:
                    yield ids, batch
                bar.step(len(ids) if new else 0, 0 if now is None else now.nbytes)

    # -- all of it in one call ---------------------------------------------------------------------

    def extract(
        self,
        step: Step,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        mask: Mask = None,
        check: bool = True,
        one: One = None,
        quiet: bool = False,
    ) -> Extraction:
        """Go over the data as often as the options need, and log every example.

        Main directions need a pass for covariances, EK-FAC one for K-FAC before its own. What an
        earlier program logged is left out. The first batch is checked as :meth:`check` does, and
        nothing is logged if its examples alone give something else. After :meth:`eval` the examples
        are queries, and :meth:`get_log` has all of them.

        Args:
            step: ``step(model, batch)`` returns the loss of the batch, or the losses of its
                examples, ``[batch]``.
            loader: batches; gone through once for each pass.
            data_id: a function from a batch to its ids, or what they are called in a batch; None
                numbers the examples by their places in the data, as :meth:`batches`.
            mask: which positions count, as ``run(data_id, mask=...)``: a function of the batch, or
                what the mask is called in it.
            check: whether to check the first batch.
            one: how the check cuts an example out of a batch, ``one(batch, i)``; None does so for
                tensors, lists, dicts and dataclasses.
            quiet: whether to show no progress bar.

        Raises:
            CaptureError: the check found differences, or what the model did cannot be logged.
            ArgumentError: a step returned something else, or a loader cannot be gone through again.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Linear(3, 2)
        >>> loader = torch.utils.data.DataLoader(torch.randn(10, 3), 4, shuffle=True)
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.setup(statistic="ekfac", compress={"kind": "pca", "rank": 2})
        >>> report = run.watch(model, quiet=True)
        >>> run.extract(lambda model, x: (model(x) ** 2).mean(), loader).passes
        ('covariances', 'K-FAC', 'EK-FAC and rows')
        """
        return extract(self, step, loader, data_id, mask, check, one, quiet)

    def check(
        self,
        step: Step,
        batch: Any,
        *,
        examples: int = 4,
        mask: Any = None,
        one: One = None,
        tolerance: float | None = None,
        raises: bool = False,
        quiet: bool = False,
    ) -> Check:
        """Run some examples of a batch alone, and compare gradients and losses with the batch.

        What is logged of each layer in the batch is compared with plain autograd of a batch of one.
        The model, its gradients and random numbers stay as they are.

        Args:
            step: as for :meth:`extract`.
            batch: a batch; a tensor, list, dict, dataclass, or any nesting of them.
            examples: how many of its examples to run alone.
            mask: as for ``run(data_id, mask=...)``.
            one: how to cut an example out of the batch, ``one(batch, i)``.
            tolerance: up to which relative error gradients count as the same; by default what
                rounding in the dtype of the model may cause.
            raises: whether differences are an error.
            quiet: whether to show no table.

        Raises:
            CaptureError: there are differences, and ``raises`` says so.
            ArgumentError: the batch cannot be cut into examples.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> report = run.watch(model, quiet=True)
        >>> run.check(lambda model, x: (model(x) ** 2).mean(), torch.randn(5, 3), quiet=True).ok
        True
        """
        found = examine(self, step, batch, mask, examples, one, tolerance)
        if not quiet:
            Console(stderr=True).print(found)
        if raises and not found.ok:
            raise CaptureError(found.message())
        return found

    def _stepped(self) -> nn.Module:
        """The model that a step is called with: without what averages gradients of processes."""
        assert self._model is not None
        averaged = isinstance(self._given, nn.parallel.DistributedDataParallel)
        return self._model if averaged or self._given is None else self._given

    # -- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything that was logged is on disk."""
        if self._pass is not None:
            self._pass.flush()

    def finalize(self) -> None:
        """End the pass over the data: everything is on disk, and statistics can be read."""
        if self._batch is not None:
            raise CaptureError("finalize was called inside of `with run(...)`.")
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    close = finalize

    def fail(self) -> None:
        """Note that the program failed, when the pass is closed."""
        if self._pass is not None:
            self._pass.fail()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail()
        try:
            self.finalize()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Besides, {self!r} could not be closed: {failure}")

    @property
    def statistics(self) -> Measured:
        """What was measured so far, of all passes with the same compression.

        Raises:
            ArgumentError: nothing was measured.
        """
        if self._pass is not None:
            self._pass.flush()
        if self._watched is not None:
            blocks = self._blocks()
        else:
            kept = remembered(self.path)
            if kept is None:
                raise ArgumentError("There is no model yet. Hint: run.watch(model).")
            blocks = kept[1]
        found = measured(self.path, label_of(self._options), blocks)
        if found is None:
            raise ArgumentError("Nothing was measured. Hint: run.setup(statistic=...).")
        return found


class _GivenUp(Exception):
    """Ends a batch of which nothing is to be logged."""


_ELSEWHERE = {  # what LogIX has, and how it is done here
    "add_lora": "run.setup(compress=64) projects gradients; the model stays as it is",
    "save_lora": "projections are made from a seed, and need not be saved",
    "add_analysis": "run.influence has the analysis",
    "initialize_from_log": "sawlog.init(project) goes on with what is there",
    "watch_activation": 'run.setup(log="forward") logs the inputs of layers',
    "log": "`with run(data_id=ids): ...` logs a batch",
    "compute_influence": "run.influence.compute_influence(src_log, tgt_log)",
    "compute_influence_all": "run.influence.compute_influence_all(run.get_log())",
    "compute_self_influence": "run.influence.compute_self_influence()",
}


def _mask(mask: Any, batch: int) -> Tensor | None:
    if mask is None:
        return None
    mask = torch.as_tensor(mask)
    if mask.ndim != 2 or mask.shape[0] != batch:
        raise ArgumentError(
            f"mask is [batch, positions], here [{batch}, ...], got the shape {tuple(mask.shape)}."
        )
    return mask.to(torch.bool)
