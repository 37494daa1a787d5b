"""A run: one model watched over a set of examples, its logs in a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from sawlog import store
from sawlog._exit import close_at_exit
from sawlog.capture import (
    Block,
    Measured,
    Options,
    Report,
    Statistics,
    compressed,
    data_ids,
    progress,
    read,
)
from sawlog.capture import checkpoint as saved
from sawlog.errors import ArgumentError, CaptureError, DuplicateIdError
from sawlog.torch._capture import Gathering
from sawlog.torch._known import Known
from sawlog.torch._matrices import Matrices
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
        return self.path / "logs" / _label(self._options, with_dtype=True)

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
        self._axis = batch_axis
        report = Report(tuple(self._blocks()), self._options.dtype, self._watched.skipped)
        if not quiet:
            Console(stderr=True).print(report)
        return report

    def _blocks(self) -> list[Block]:
        assert self._watched is not None
        return compressed(self._watched.blocks, self._options.compress, self._options.dtype)

    # -- logging ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def __call__(self, data_id: Any, *, mask: Any = None, scaler: Any = None) -> Iterator[Run]:
        """Log the batch whose forward and backward pass run inside of the ``with``.

        Args:
            data_id: one id for each example: whole numbers, texts, or the inputs themselves, which
                are then named by a hash of their content.
            mask: which positions of each example count, ``[batch, positions]``: the others are not
                in statistics, and not counted by ``reduction="tokens"``.
            scaler: the ``torch.amp.GradScaler`` that the loss is scaled with, if one is used.

        Raises:
            ArgumentError: the ids are none, or :meth:`watch` was not called.
            DuplicateIdError: an id was logged before in this run.
            CaptureError: what the model did cannot be logged.
        """
        if self._batch is not None:
            raise CaptureError(
                "One batch is being logged already. Hint: `with run(...)` cannot be nested."
            )
        ids = data_ids(data_id)
        now = self._start()
        todo = now.todo(ids)
        if not len(ids) or not todo.any():
            yield self
            return
        self._batch = batch = now.gathering(
            len(ids), None if todo.all() else torch.from_numpy(todo), _mask(mask, len(ids)), scaler
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

    def _start(self) -> Pass:
        if self._pass is None:
            if self._watched is None:
                raise ArgumentError("There is no model yet. Hint: run.watch(model).")
            watched = self._watched.with_blocks(self._blocks())
            self._pass = Pass(self.path, self.project, self._options, watched, self._axis, self)
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
        found = measured(self.path, _label(self._options), self._blocks())
        if found is None:
            raise ArgumentError("Nothing was measured. Hint: run.setup(statistic=...).")
        return found


class Pass:
    """One pass over the data with the same options: a store for rows, and statistics."""

    def __init__(
        self, path: Path, project: str, options: Options, watched: Watched, axis: int, run: Run
    ) -> None:
        self._options, self._watched, self._axis = options, watched, axis
        label = _label(options)
        self._folder = path / "statistics" / label / "+".join(options.statistic or ("none",))
        self._about = {
            "project": project,
            "options": options.to_json(),
            "blocks": [block.to_json() for block in watched.blocks],
        }
        whole = measured(path, "whole", watched.blocks)
        bases = None
        if "ekfac" in options.statistic:
            bases = _bases(measured(path, label, watched.blocks), watched.blocks)
        self._matrices = Matrices(watched.blocks, options.compress, whole, bases)
        self._statistics = Statistics(options.precision, offload=options.offload)
        self._writer: store.Writer | None = None
        self.known = Known()
        self._counted: list[np.ndarray] = []
        self._saved_at = time.monotonic()
        self.nbytes = 0
        if options.saved:
            self._writer = store.create(
                run.logs,
                exists="append",
                meta=self._about,
                duplicates="replace" if options.duplicates == "last" else "first",
                interval=options.interval,
            )
            _check_about(self._writer.meta, self._about, run.logs)
        self._resume(run)

    def _resume(self, run: Run) -> None:
        there: np.ndarray | None = None
        if self._options.statistic:
            loaded = saved.load(self._folder)
            if loaded is not None:
                arrays, there, about = loaded
                _check_about(about, self._about, self._folder)
                tensors = {name: (torch.from_numpy(a), n) for name, (a, n) in arrays.items()}
                self._statistics.load(tensors)
                if there is not None:
                    self._counted.append(there)
        elif self._writer is not None and self._writer.schema:
            with store.open(run.logs) as reader:
                if reader.names:
                    there = np.asarray(reader.ids(reader.names[0]))
        if there is not None and self._options.duplicates != "last":
            self.known.begin_with(there)

    def todo(self, ids: np.ndarray) -> np.ndarray:
        """Which examples of a batch are to be logged.

        Raises:
            DuplicateIdError: one was logged before by this very pass.
        """
        twice = self.known.seen_now(ids)
        if self._options.duplicates == "error" and twice.any():
            listed = ", ".join(map(repr, ids[twice][:5].tolist()))
            raise DuplicateIdError(
                f"{int(twice.sum())} of the ids were logged before: {listed}. Nothing of this "
                "batch was logged. Hint: give each example an id of its own; "
                "run.setup(duplicates='first') or 'last' keeps one of several."
            )
        if self._options.duplicates == "last":
            return np.ones(len(ids), bool)
        return self.known.missing(ids)

    def gathering(
        self, batch: int, todo: Tensor | None, mask: Tensor | None, scaler: Any
    ) -> Gathering:
        """What gathers the logs of a batch."""
        factor = 1.0 if scaler is None else float(scaler.get_scale())
        return Gathering(
            self._watched,
            self._options,
            self._matrices,
            self._statistics,
            batch=batch,
            todo=todo,
            mask=mask,
            factor=factor,
            axis=self._axis,
        )

    def finish(self, batch: Gathering, ids: np.ndarray) -> None:
        """Write what a batch gathered."""
        logs = batch.rows(len(ids))
        if self._writer is not None:
            columns = batch.columns(logs)
            self._writer.append(ids, columns)
            self.nbytes += sum(column.nbytes for column in columns.values())
        if self._options.statistic:
            batch.add_statistics(logs, len(ids))
            self._counted.append(ids)
        self.known.add(ids)
        if time.monotonic() - self._saved_at > self._options.interval:
            self.flush()

    def flush(self) -> None:
        """Put everything on disk: rows first, so that what is counted is stored."""
        if self._writer is not None:
            self._writer.flush()
        if self._options.statistic:
            ids = np.concatenate(self._counted) if self._counted else np.zeros(0, np.int64)
            saved.save(self._folder, self._statistics.arrays(), ids, self._about)
        self._saved_at = time.monotonic()

    def fail(self) -> None:
        """Note that the program failed."""
        if self._writer is not None:
            self._writer.fail()

    def close(self) -> None:
        """Flush, and end."""
        self.flush()
        if self._writer is not None:
            self._writer.close()


def measured(path: Path, label: str, blocks: Sequence[Block]) -> Measured | None:
    """All that was measured with one compression."""
    arrays: dict[str, tuple[np.ndarray, int]] = {}
    examples = 0
    for folder in sorted((path / "statistics" / label).glob("*")):
        loaded = saved.load(folder)
        if loaded is not None:
            arrays.update(loaded[0])
            ids = loaded[1]
            if "kfac" in folder.name.split("+") or not examples:
                examples = 0 if ids is None else len(ids)
    return Measured(arrays, blocks, examples) if arrays else None


def _bases(
    found: Measured | None, blocks: Sequence[Block]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if found is None:
        raise ArgumentError(
            'statistic="ekfac" corrects the eigenvalues of K-FAC, which was not measured. Hint: '
            'run over the data with statistic="kfac" and the same compression, finalize(), and '
            "set up again."
        )
    return {block.name: found.eigenbasis(block.name) for block in blocks}


def _check_about(there: Any, now: Any, where: Path) -> None:
    """A run goes on only with what it began with."""
    for key in ("options", "blocks"):
        if there.get(key) != now[key]:
            was, wanted = there.get(key), now[key]
            if key == "options":
                differing = sorted(k for k in wanted if (was or {}).get(k) != wanted[k])
                differing = [k for k in differing if k not in ("interval", "offload")]
                if not differing:
                    continue
                said = {k: ((was or {}).get(k), wanted[k]) for k in differing}
                text = ", ".join(f"{k} was {a!r}, now {b!r}" for k, (a, b) in said.items())
            else:
                text = "other layers, or other shapes of them, were watched"
            raise ArgumentError(
                f"The logs at {where} were begun otherwise: {text}. Hint: another project, or "
                "sawlog.init(project, exists='replace')."
            )


def _label(options: Options, *, with_dtype: bool = False) -> str:
    """What a compression is called among the folders of a run."""
    how = options.compress
    label = "whole"
    if how is not None:
        size = f"rank{how.rank}" if how.rank is not None else f"{how.bytes}bytes"
        label = f"{how.kind}-{size}-seed{how.seed}"
    return f"{label}-{options.dtype}" if with_dtype else label


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
