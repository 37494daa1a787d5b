"""A run: one model watched over a set of examples, its logs in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from sawlog._exit import close_at_exit
from sawlog.capture import (
    Block,
    Measured,
    Options,
    Report,
    compressed,
    data_ids,
    label_of,
    logs_of,
    measured,
    progress,
    read,
)
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Influence, LogLoader, Logs
from sawlog.torch._capture import Gathering
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
        config: options to begin with, as for :meth:`setup`.

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
        if not isinstance(project, str) or not project or Path(project).name != project:
            raise ArgumentError(
                f"project is the name of a folder, as 'my_project', got {project!r}."
            )
        if exists not in EXISTS:
            listed = ", ".join(map(repr, EXISTS))
            raise ArgumentError(f"exists is one of {listed}, got {exists!r}.")
        self.project = project
        self.path = Path(root) / project
        if self.path.exists() and exists == "error":
            raise ArgumentError(
                f"There is a run at {self.path} already. Hint: exists='append' goes on with it, "
                "exists='replace' starts anew."
            )
        if exists == "replace":
            shutil.rmtree(self.path, ignore_errors=True)
        self._options = read(config)
        self._model: nn.Module | None = None
        self._watched: Watched | None = None
        self._axis = 0
        self._pass: Pass | None = None
        self._batch: Gathering | None = None
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

        Raises:
            ArgumentError: there is nothing to watch.
            UncoveredError: no rule covers some parameters; names them all.
        """
        if self._pass is not None:
            raise ArgumentError(
                "watch was called while examples are being logged. Hint: call run.finalize() first."
            )
        if batch_axis not in (0, 1):
            raise ArgumentError(f"batch_axis is 0 or 1, got {batch_axis!r}.")
        self._watched, self._model = look_at(model, names, types, uncovered), model
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
            self._asking = Asking(self.path, self._options, watched, self._axis)
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
        """
        if self._log is None:
            raise ArgumentError(
                "No query was logged yet. Hint: run.eval(), then `with run(data_id=ids): "
                "loss.backward()`, then run.get_log()."
            )
        return self._log

    def build_log_dataloader(self, batch_size: int = 64) -> LogLoader:
        """Goes through all that is stored, in batches of ``(ids, {layer: rows})``."""
        self.finalize()
        return LogLoader(Logs(self.logs), batch_size)

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
            self._pass = Pass(self.path, self.project, self._options, watched, self._axis)
        return self._pass

    def missing(self, data_id: Any) -> np.ndarray:
        """Those ids that are not logged yet, in order."""
        ids = data_ids(data_id)
        return ids[self._start().known.missing(ids)]

    def batches(
        self,
        loader: Iterable[Any],
        data_id: Any = None,
        *,
        total: int | None = None,
        quiet: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Go through the batches of a loader that are not logged yet, with a progress bar.

        Args:
            loader: batches.
            data_id: a function from a batch to its ids; None numbers the examples from 0 on, in
                the order of the loader, which must then always be the same.
            total: how many batches there are, if the loader does not say.
            quiet: whether to show no progress bar.

        Yields:
            ``(ids, batch)``, for ``with run(data_id=ids): ...``
        """
        now = self._start()
        if total is None and hasattr(loader, "__len__"):
            total = len(loader)  # type: ignore[arg-type]
        at = 0
        with progress.shown(f"logging {self.project}", total, quiet=quiet) as bar:
            for batch in loader:
                if data_id is None:
                    size = _size(batch)
                    ids: Any = np.arange(at, at + size)
                    at += size
                else:
                    ids = data_id(batch)
                named = data_ids(ids)
                new = bool(now.known.missing(named).any())
                if new:
                    yield named, batch
                bar.step(len(named) if new else 0, now.nbytes)

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
            ArgumentError: :meth:`watch` was not called, or nothing was measured.
        """
        if self._pass is not None:
            self._pass.flush()
        if self._watched is None:
            raise ArgumentError("There is no model yet. Hint: run.watch(model).")
        found = measured(self.path, label_of(self._options), self._blocks())
        if found is None:
            raise ArgumentError("Nothing was measured. Hint: run.setup(statistic=...).")
        return found


def _mask(mask: Any, batch: int) -> Tensor | None:
    if mask is None:
        return None
    mask = torch.as_tensor(mask)
    if mask.ndim != 2 or mask.shape[0] != batch:
        raise ArgumentError(
            f"mask is [batch, positions], here [{batch}, ...], got the shape {tuple(mask.shape)}."
        )
    return mask.to(torch.bool)


def _size(batch: Any) -> int:
    """How many examples a batch has: the length of its first tensor."""
    if isinstance(batch, (Tensor, np.ndarray)):
        return len(batch)
    if isinstance(batch, Mapping):
        return _size(next(iter(batch.values())))
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], (Tensor, np.ndarray)):
        return len(batch[0])
    if isinstance(batch, (tuple, list)):
        return len(batch)
    raise ArgumentError(
        f"How many examples a {type(batch).__name__} has is not known. Hint: "
        "run.batches(loader, data_id=lambda batch: batch.ids)."
    )
