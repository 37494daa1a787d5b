"""Loggers: logs from inside of JAX programs to where people look at them, one run for each seed.

>>> import tempfile, jax, jax.numpy as jnp, sawlog
>>> from sawlog.loggers import SaveLogger
>>> def train(key):
...     def step(x, i):
...         x = x + jax.random.uniform(jax.random.fold_in(key, i))
...         sawlog.log({"x": x}, step=i)
...         return x, None
...     return jax.lax.scan(step, 0.0, jnp.arange(3))[0]
>>> folder = tempfile.mkdtemp()
>>> with SaveLogger(folder) as logger:
...     def run(key):
...         state = logger.init(key)
...         return logger.spool(train, state)(key)
...     out = jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.arange(8)))
>>> print(sawlog.load(folder + "/seed-5").step["x"])
[0 1 2]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog._optional import require
from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.jax._disk import LogSink
from sawlog.jax._logger import FALLBACK
from sawlog.jax._logger import Logger as Logger
from sawlog.jax._runs import RunState as RunState
from sawlog.jax._runs import Sink as Sink
from sawlog.sinks import (
    ConsoleSink,
    CsvSink,
    Dashboard,
    Fanout,
    JsonlSink,
    MemorySink,
    MLflowSink,
    NeptuneSink,
    TensorBoardSink,
    TrackioSink,
    WandbSink,
)

__all__ = [
    "ConsoleLogger",
    "CsvLogger",
    "JsonlLogger",
    "Logger",
    "MLflowLogger",
    "MemoryLogger",
    "MultiLogger",
    "NeptuneLogger",
    "RunState",
    "SaveLogger",
    "Sink",
    "TensorBoardLogger",
    "TrackerLogger",
    "TrackioLogger",
    "WandbLogger",
]


class SaveLogger(Logger):
    """Writes each run to a store of its own, ``path/seed-0`` and so on.

    ``sawlog.load(path / "seed-0")`` gives the logs back bit for bit: those of ``spool`` as
    :func:`sawlog.spool` would have returned them, those of several calls one after the other.

    Args:
        path: the folder of all runs. A run is called after its key: ``seed-7`` for
            ``jax.random.key(7)`` and for the seed 7, ``key-6b200159-99ba4efe`` for others.
        exists: what to do about a run that is there already: ``"append"`` to it, ``"replace"`` it,
            or ``"error"``.
        options: those of :func:`sawlog.store.create`, as ``nan="error"`` or ``interval=5.0``, the
            seconds after which logs are on disk at the latest.

    ``sawlog.store.open(path / "seed-0").meta`` has the ``key`` of a run and its ``config``.
    Everything is on disk when ``flush``, ``finish`` or ``close`` returns, and at the end of the
    program.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, exists: str = "append", **options: Any
    ) -> None:
        super().__init__(exists=exists)
        self.path = Path(path)
        self._options = options

    def __repr__(self) -> str:
        return f"SaveLogger({str(self.path)!r}, exists={self._exists!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A store in a folder with the name of the run."""
        return LogSink(self.path / name, exists=exists, meta=about, **self._options)


class CsvLogger(Logger):
    """Writes each run to a CSV file of its own, ``path/seed-0.csv``: name, steps, value.

    See :class:`sawlog.sinks.CsvSink` for what becomes of arrays.
    """

    def __init__(self, path: str | os.PathLike[str], *, exists: str = "append") -> None:
        super().__init__(exists=exists)
        self.path = Path(path)

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A file with the name of the run."""
        return CsvSink(self.path / f"{name}.csv", exists=exists)


class JsonlLogger(CsvLogger):
    """Writes each run to a file of JSON lines, ``path/seed-0.jsonl``, one entry a line."""

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A file with the name of the run."""
        return JsonlSink(self.path / f"{name}.jsonl", exists=exists)


class MemoryLogger(Logger):
    """Keeps the logs of each run in memory, for tests and notebooks.

    >>> import jax
    >>> logger = MemoryLogger()
    >>> logger.log(logger.init(7), {"loss": 0.5}, step=3)
    >>> logger.runs["seed-7"].logs["loss"]
    array([0.5], dtype=float32)
    """

    def __init__(self, *, exists: str = "append") -> None:
        super().__init__(exists=exists)
        self.runs: dict[str, MemorySink] = {}

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A sink under the name of the run."""
        if name in self.runs and exists == "error":
            raise StoreExistsError(f"There is a run {name!r} already. Hint: exists='append'.")
        kept = self.runs[name].records if name in self.runs and exists == "append" else None
        self.runs[name] = MemorySink()
        if kept:
            self.runs[name].write(kept)
        return self.runs[name]


class ConsoleLogger(Logger):
    """Shows all runs on the console in one table: means over the seeds, spread, course, speed.

    Args:
        title: the heading.
        total: how many steps each run has, if that is known: then there are a bar and the remaining
            time.
        options: those of :class:`sawlog.sinks.Dashboard`, as ``names=["loss", "eval/*"]``,
            ``every=30.0``, the seconds between lines where nobody watches, or ``file=sys.stderr``.

    It appears when the first run starts, and stays as it is when all have been finished. Nothing is
    kept: ``MultiLogger(SaveLogger("runs"), ConsoleLogger())`` does both.
    """

    def __init__(self, title: str = "sawlog", *, total: int | None = None, **options: Any) -> None:
        super().__init__()
        self.dashboard = Dashboard(title, total=total, **options)

    def __repr__(self) -> str:
        return f"ConsoleLogger({self.dashboard.title!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run in the table."""
        return ConsoleSink(name, dashboard=self.dashboard)

    def init(self, key: Any, **config: Any) -> RunState:
        """Start the run of a PRNG key, see :meth:`Logger.init`."""
        self.dashboard.hold()  # runs that are finished one after the other are one table
        return super().init(key, **config)

    def finish(self, state: RunState | None = None) -> None:
        """End the runs of ``state``, or all of them and the table, see :meth:`Logger.finish`."""
        try:
            super().finish(state)
        finally:
            if state is None:
                self.dashboard.close()


class MultiLogger(Logger):
    """Writes each run to several loggers: ``MultiLogger(SaveLogger("runs"), CsvLogger("csv"))``.

    The program is traced once and calls back once, however many loggers there are. What a run that
    exists already means is each logger's own affair.
    """

    def __init__(self, *loggers: Logger) -> None:
        super().__init__()
        if not loggers:
            raise ArgumentError("MultiLogger needs at least one logger.")
        self.loggers = loggers

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """The run of this name of every logger."""
        opened: list[Sink] = []
        try:
            for logger in self.loggers:
                opened.append(logger._sink_of(name, about))
        except BaseException:
            for sink in opened:
                sink.close()
            raise
        return Fanout(*opened)

    def _ended(self) -> None:
        for logger in self.loggers:
            logger._ended()


def _config(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": about["key"], **about["config"]}


class TrackerLogger(Logger):
    """The base of the loggers of trackers, which may fail while a program goes on.

    Args:
        on_error: what to do then: ``"fallback"``, the program goes on and the logs go to a store on
            disk, which ``sawlog.load`` reads; or ``"raise"``. The failure is reported by a
            :class:`~sawlog.errors.SinkWarning`, and again when the run ends.
        fallback: the folder in which those stores are made, as ``fallback/WandbLogger/seed-0``.
        options: those of the sink.

    A run always begins anew, whatever the tracker has under its name.

    Raises:
        MissingPackageError: the package of the tracker is not installed.
    """

    #: The package of the tracker, and the extra of sawlog that installs it.
    package: str
    extra: str

    def __init__(
        self,
        *,
        on_error: str = "fallback",
        fallback: str | os.PathLike[str] = FALLBACK,
        **options: Any,
    ) -> None:
        require(self.package, self.extra, type(self).__name__)  # now, not while a program runs
        super().__init__(on_error=on_error, fallback=fallback)
        self._options = options


class WandbLogger(TrackerLogger):
    """Sends each run to Weights & Biases, in one project, named after its seed.

    ``options`` are those of :class:`TrackerLogger` and :class:`sawlog.sinks.WandbSink`, as
    ``mode="offline"`` or ``dir=...``.
    """

    package, extra = "wandb", "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"WandbLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the project."""
        return WandbSink(self._project, name, config=_config(about), **self._options)


class TensorBoardLogger(TrackerLogger):
    """Writes each run to a folder of event files, ``path/seed-0``, for TensorBoard."""

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.path)!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A folder of event files."""
        return TensorBoardSink(self.path / name, config=_config(about), **self._options)


class MLflowLogger(TrackerLogger):
    """Sends each run to an MLflow experiment.

    ``options`` are those of :class:`TrackerLogger` and :class:`sawlog.sinks.MLflowSink`, as
    ``tracking_uri="sqlite:///mlflow.db"``.
    """

    package, extra = "mlflow", "mlflow"

    def __init__(self, experiment: str = "Default", **options: Any) -> None:
        super().__init__(**options)
        self._experiment = experiment

    def __repr__(self) -> str:
        return f"MLflowLogger({self._experiment!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the experiment."""
        return MLflowSink(self._experiment, name=name, config=_config(about), **self._options)


class TrackioLogger(TrackerLogger):
    """Sends each run to a Trackio project."""

    package, extra = "trackio", "trackio"

    def __init__(self, project: str, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the project."""
        return TrackioSink(self._project, name, config=_config(about), **self._options)


class NeptuneLogger(TrackerLogger):
    """Writes each run with Neptune's client, offline: its hosted service closed in 2026."""

    package, extra = "neptune", "neptune"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"NeptuneLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run on disk."""
        return NeptuneSink(self._project, name, config=_config(about), **self._options)
