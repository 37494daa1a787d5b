"""Loggers of trackers; each one defines the sink of its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sawlog._optional import require
from sawlog._paths import absolute
from sawlog.jax._runs.logger import Logger
from sawlog.jax._runs.run_owner import FALLBACK
from sawlog.sinks import (
    Async,
    MLflowSink,
    NeptuneSink,
    Sink,
    TensorBoardSink,
    TrackioSink,
    WandbSink,
)
from sawlog.sinks._values import XAxis

TIMEOUT = 120.0
"""The longest time of a call of a tracker, in seconds."""


def _config(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": about["key"], **about["config"]}


def _own_name(name: str) -> str:
    """Return the name of a run without its group, for trackers with groups."""
    return name.rpartition("/")[2]


def _group(about: Mapping[str, Any]) -> dict[str, str]:
    return {"group": about["group"]} if "group" in about else {}


class TrackerLogger(Logger):
    """The base of the loggers of trackers, which may fail while a program runs.

    Args:
        on_error: what to do after a failure: ``"fallback"``, the program continues and the logs go
            to a store on disk, which ``sawlog.load`` reads; or ``"raise"``. A
            :class:`~sawlog.errors.SinkWarning` reports the failure, and another one the end of the
            run.
        fallback: the folder of these stores, such as ``fallback/WandbLogger/seed-0``.
        background: whether a thread writes, while the program continues; at most 64 writes wait.
            With ``on_error="raise"`` the next write, ``flush`` or ``finish`` raises the error.
        timeout: the longest time of a call of the tracker in seconds, also for opening a run. A
            call that takes longer has failed, and the tracker is not called again. None waits
            forever.
        x: the step axis for charts, such as ``"update_step"``; other axes are logged as well. Logs
            without it use their first axis.
        processes: which processes of a ``jax.distributed`` job write, see :class:`Logger`.
        options: those of the sink.

    A run is always a new one, even if the tracker has another of the same name.

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
        background: bool = True,
        timeout: float | None = TIMEOUT,
        x: str | None = None,
        processes: str = "first",
        **options: Any,
    ) -> None:
        require(self.package, self.extra, type(self).__name__)  # now, not while a program runs
        super().__init__(on_error=on_error, fallback=fallback, timeout=timeout, processes=processes)
        self._threaded = background
        self._options = {**options, "x": XAxis(x)}  # one for all runs, to warn once

    def _sink_of(self, name: str, about: Mapping[str, Any]) -> Sink:
        sink = super()._sink_of(name, about)
        return Async(sink) if self._threaded else sink


class WandbLogger(TrackerLogger):
    """Send each run to Weights & Biases, in one project, named after its seed.

    ``options`` are those of :class:`TrackerLogger` and :class:`sawlog.sinks.WandbSink`, such as
    ``mode="offline"`` or ``dir=...``.
    """

    package, extra = "wandb", "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"WandbLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a run of the project."""
        options = {**self._options, **_group(about)}
        return WandbSink(self._project, _own_name(name), config=_config(about), **options)


class TensorBoardLogger(TrackerLogger):
    """Write each run to a folder of event files, ``path/seed-0``, for TensorBoard.

    A run that already exists gets another file; TensorBoard shows all files of a folder as one run.
    """

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = absolute(path)

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.path)!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a folder of event files."""
        return TensorBoardSink(self.path / name, config=_config(about), **self._options)


class MLflowLogger(TrackerLogger):
    """Send each run to an MLflow experiment; the group of a run is its tag ``group``.

    ``options`` are those of :class:`TrackerLogger` and :class:`sawlog.sinks.MLflowSink`, such as
    ``tracking_uri="sqlite:///mlflow.db"``.
    """

    package, extra = "mlflow", "mlflow"

    def __init__(self, experiment: str = "Default", **options: Any) -> None:
        super().__init__(**options)
        self._experiment = experiment

    def __repr__(self) -> str:
        return f"MLflowLogger({self._experiment!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a run of the experiment."""
        tags = {**self._options.get("tags", {}), **_group(about)}
        options = {**self._options, "tags": tags, "config": _config(about)}
        return MLflowSink(self._experiment, name=_own_name(name), **options)


class TrackioLogger(TrackerLogger):
    """Send each run to a Trackio project."""

    package, extra = "trackio", "trackio"

    def __init__(self, project: str, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a run of the project."""
        options = {**self._options, **_group(about)}
        return TrackioSink(self._project, _own_name(name), config=_config(about), **options)


class NeptuneLogger(TrackerLogger):
    """Write each run with Neptune's client, offline: its hosted service closed in 2026."""

    package, extra = "neptune", "neptune"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._project = project

    def __repr__(self) -> str:
        return f"NeptuneLogger({self._project!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a run on disk."""
        options = {**self._options, **_group(about)}
        return NeptuneSink(self._project, _own_name(name), config=_config(about), **options)
