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

from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.jax._disk import StoreSink
from sawlog.jax._logger import Logger as Logger
from sawlog.jax._runs import RunState as RunState
from sawlog.jax._runs import Sink as Sink
from sawlog.sinks import (
    CsvSink,
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

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> StoreSink:
        """A store in a folder with the name of the run."""
        return StoreSink(self.path / name, exists=exists, meta=about, **self._options)


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
                opened.append(logger.open_run(name, about, logger.exists))
        except BaseException:
            for sink in opened:
                sink.close()
            raise
        return Fanout(*opened)


def _config(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": about["key"], **about["config"]}


class WandbLogger(Logger):
    """Sends each run to Weights & Biases, in one project, named after its seed.

    ``options`` are those of :class:`sawlog.sinks.WandbSink`, as ``mode="offline"`` or ``dir=...``.
    A run always begins anew: ``exists`` has no meaning for trackers.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._project, self._options = project, options

    def __repr__(self) -> str:
        return f"WandbLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the project."""
        return WandbSink(self._project, name, config=_config(about), **self._options)


class TensorBoardLogger(Logger):
    """Writes each run to a folder of event files, ``path/seed-0``, for TensorBoard."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self.path = Path(path)
        self._options = options

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.path)!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A folder of event files."""
        return TensorBoardSink(self.path / name, config=_config(about), **self._options)


class MLflowLogger(Logger):
    """Sends each run to an MLflow experiment.

    ``options`` are those of :class:`sawlog.sinks.MLflowSink`, as
    ``tracking_uri="sqlite:///mlflow.db"``.
    """

    def __init__(self, experiment: str = "Default", **options: Any) -> None:
        super().__init__()
        self._experiment, self._options = experiment, options

    def __repr__(self) -> str:
        return f"MLflowLogger({self._experiment!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the experiment."""
        return MLflowSink(self._experiment, name=name, config=_config(about), **self._options)


class TrackioLogger(Logger):
    """Sends each run to a Trackio project."""

    def __init__(self, project: str, **options: Any) -> None:
        super().__init__()
        self._project, self._options = project, options

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run of the project."""
        return TrackioSink(self._project, name, config=_config(about), **self._options)


class NeptuneLogger(Logger):
    """Writes each run with Neptune's client, offline: its hosted service closed in 2026."""

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._project, self._options = project, options

    def __repr__(self) -> str:
        return f"NeptuneLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A run on disk."""
        return NeptuneSink(self._project, name, config=_config(about), **self._options)
