"""Loggers of trackers, each of which only names its sink."""

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
"""Seconds that a call of a tracker may take."""


def _config(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": about["key"], **about["config"]}


def _own_name(name: str) -> str:
    """What a tracker that has groups of its own calls a run: its name without the group."""
    return name.rpartition("/")[2]


def _group(about: Mapping[str, Any]) -> dict[str, str]:
    return {"group": about["group"]} if "group" in about else {}


class TrackerLogger(Logger):
    """The base of the loggers of trackers, which may fail while a program goes on.

    Args:
        on_error: what to do then: ``"fallback"``, the program goes on and the logs go to a store on
            disk, which ``sawlog.load`` reads; or ``"raise"``. The failure is reported by a
            :class:`~sawlog.errors.SinkWarning`, and again when the run ends.
        fallback: the folder in which those stores are made, as ``fallback/WandbLogger/seed-0``.
        background: whether a thread writes, while the program goes on; at most 64 writes wait. With
            ``on_error="raise"`` the error then comes with the next write, ``flush`` or ``finish``.
        timeout: seconds that a call of the tracker may take, opening a run included. One that
            takes longer has failed: the tracker is not called any more. None waits for ever.
        x: the step axis that is the x axis of charts, as ``"update_step"``; the others are
            logged beside it. Logs without it have their first one.
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
        background: bool = True,
        timeout: float | None = TIMEOUT,
        x: str | None = None,
        **options: Any,
    ) -> None:
        require(self.package, self.extra, type(self).__name__)  # now, not while a program runs
        super().__init__(on_error=on_error, fallback=fallback, timeout=timeout)
        self._threaded = background
        self._options = {**options, "x": XAxis(x)}  # one for all runs, to warn once

    def _sink_of(self, name: str, about: Mapping[str, Any]) -> Sink:
        sink = super()._sink_of(name, about)
        return Async(sink) if self._threaded else sink


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
        options = {**self._options, **_group(about)}
        return WandbSink(self._project, _own_name(name), config=_config(about), **options)


class TensorBoardLogger(TrackerLogger):
    """Writes each run to a folder of event files, ``path/seed-0``, for TensorBoard.

    A run that is there already gets one more file, which TensorBoard shows as one with the others.
    """

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = absolute(path)

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.path)!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """A folder of event files."""
        return TensorBoardSink(self.path / name, config=_config(about), **self._options)


class MLflowLogger(TrackerLogger):
    """Sends each run to an MLflow experiment; the group of a run is its tag ``group``.

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
        tags = {**self._options.get("tags", {}), **_group(about)}
        options = {**self._options, "tags": tags, "config": _config(about)}
        return MLflowSink(self._experiment, name=_own_name(name), **options)


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
        options = {**self._options, **_group(about)}
        return TrackioSink(self._project, _own_name(name), config=_config(about), **options)


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
        options = {**self._options, **_group(about)}
        return NeptuneSink(self._project, _own_name(name), config=_config(about), **options)
