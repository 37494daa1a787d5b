"""``MLflowSink``: a run of MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from sawlog._optional import require
from sawlog.errors import LogMismatchError
from sawlog.records import Records
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._values import (
    Kind,
    Number,
    TrackerColumn,
    TrackerGroup,
    XAxis,
    flat_config,
    pixels,
    summary,
)

BATCH = 1000  # MLflow's limit for one request
PARAMS = 100
INTERVAL, SELDOM = 1.0, 30.0  # the shortest and longest seconds that metrics wait
SHARE = 20  # sending takes at most 1/20 of the time, unless SELDOM is reached


class MLflowSink(TrackerSink):
    """Write to a new run of MLflow, or continue one; several may be open at a time.

    Steps are the integers of the first step axis, or of the axis ``x``, or else the index of the
    entry; other axes are metrics as well. MLflow has no histograms: arrays are summarized by the
    metrics ``name/mean``, ``name/std``, ``name/min`` and ``name/max``. Its names have no brackets:
    the leaf ``params['w'][0]`` becomes ``params/w/0``, and other characters become ``_``.

    MLflow orders a metric by time and step and drops duplicates, so an entry whose step is not
    greater than the previous one gets a time one millisecond later: ``get_metric_history`` returns
    entries in the order of logging.

    Args:
        experiment: the experiment; created if missing.
        tracking_uri: the store, such as ``"sqlite:///mlflow.db"``; None uses that of the
            environment. Recent versions of MLflow refuse plain files, ``./mlruns``.
        name: the name of the run; None lets MLflow choose one.
        config: settings to save with the run, as parameters; ``{"net": {"width": 3}}`` becomes
            ``net/width``.
        tags: tags of the run.
        artifact_location: where a new experiment keeps its images.
        run_id: the id of a run to continue, instead of a new one; it keeps its configuration.
        images: whether arrays of two or three axes are images, which go to the artifacts; if not,
            they are summarized as above.
        histograms: whether to summarize arrays; if not, they are dropped.
        x: the step axis for charts; by default, and for logs without it, the first one.

    Metrics are sent in batches of a thousand: by the first ``write`` after a batch is full or a
    second old, and by ``flush`` and ``close``. If sending is slow they wait longer, up to 30
    seconds, so that it takes at most a twentieth of the time. Metrics that could not be sent are
    sent again by the next of these calls. Numbers are ``float64``; MLflow's SQL stores replace
    infinities by the largest finite number.

    Raises:
        MissingPackageError: ``mlflow`` is not installed, or ``pillow``, which its images need.
    """

    def __init__(
        self,
        experiment: str = "Default",
        *,
        tracking_uri: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        artifact_location: str | None = None,
        run_id: str | None = None,
        images: bool = True,
        histograms: bool = True,
        x: str | XAxis | None = None,
    ) -> None:
        super().__init__(images=images, histograms=histograms, x=x)
        self._mlflow: Any = require("mlflow", "mlflow", type(self).__name__)
        if str(tracking_uri or self._mlflow.get_tracking_uri()).startswith("sqlite"):
            require("sqlalchemy", "mlflow", type(self).__name__)  # optional in MLflow itself
        self._client: Any = self._mlflow.MlflowClient(tracking_uri)
        self._run: Any = None
        if run_id is not None:
            self._run, config = self._client.get_run(run_id), None  # it has its configuration
            self._client.update_run(run_id, status="RUNNING")
        else:
            number = self._experiment(experiment, artifact_location)
            self._run = self._client.create_run(number, tags=dict(tags or {}), run_name=name)
        self._names: dict[str, str] = {}  # the name in MLflow -> the logged name
        self._last: dict[str, tuple[int, int]] = {}  # time and step of the last entry
        self._waiting: list[Any] = []
        self._since, self._interval = time.monotonic(), INTERVAL
        self._log_config(config or {})

    def __repr__(self) -> str:
        return f"MLflowSink(name={self._run.info.run_name!r}, run_id={self.run_id!r})"

    @property
    def run_id(self) -> str:
        """The id of the run in MLflow."""
        return str(self._run.info.run_id)

    def _experiment(self, name: str, location: str | None) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except self._mlflow.exceptions.MlflowException:  # perhaps another process created it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log_config(self, config: Mapping[str, Any]) -> None:
        param = self._mlflow.entities.Param
        params = [param(_clean(k), str(v)) for k, v in flat_config(config).items()]
        for i in range(0, len(params), PARAMS):
            self._client.log_batch(self.run_id, params=params[i : i + PARAMS])

    def _check(self, found: list[TrackerGroup]) -> None:
        names = dict(self._names)
        for group in found:
            for name, column in {**group.columns, **group.others}.items():
                other = names.setdefault(_clean(name), name)
                if other != name:
                    raise LogMismatchError(
                        f"{name!r} and {other!r} would both be called {_clean(name)!r} in MLflow, "
                        "whose names have letters, digits and _-.:/ only. Hint: rename one."
                    )
                if column.kind is Kind.IMAGE:
                    require("PIL", "mlflow", "An image in MLflowSink")
        self._names = names

    def _write(self, records: Records) -> None:
        if len(self._waiting) >= BATCH or time.monotonic() > self._since + self._interval:
            self._flush()  # first, so that a failure takes nothing of this call
        super()._write(records)

    def _write_group(self, group: TrackerGroup) -> None:
        now = time.time_ns() // 1_000_000
        for name, column in {**group.columns, **group.others}.items():
            if column.kind is Kind.IMAGE:
                self._write_images(_clean(name), column, group)
            else:
                for part, items in _scalars(_clean(name), column).items():
                    self._add(part, items, group.steps, now)

    def _add(self, name: str, items: Any, steps: Any, now: int) -> None:
        metric = self._mlflow.entities.Metric
        at, last = self._last.get(name, (now, -(2**63)))
        at, last = (now, -(2**63)) if now > at else (at, last)
        for item, step in zip(items, steps, strict=True):
            at = at if step > last else at + 1
            last = step
            self._waiting.append(metric(name, item, at, step))
        self._last[name] = at, last

    def _write_images(self, name: str, column: TrackerColumn, group: TrackerGroup) -> None:
        for item, step in zip(column.items, group.steps, strict=True):
            key = name.replace(":", "_")
            self._client.log_image(self.run_id, pixels(item), key=key, step=step)

    def _flush(self) -> None:
        began = time.monotonic()
        while self._waiting:
            self._client.log_batch(self.run_id, metrics=self._waiting[:BATCH])
            del self._waiting[:BATCH]  # only now: after a failure it is sent again
        self._since = time.monotonic()
        self._interval = min(SELDOM, max(INTERVAL, SHARE * (self._since - began)))

    def _finish(self, failed: bool) -> None:
        self._flush()
        self._client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")


def _scalars(name: str, column: TrackerColumn) -> dict[str, list[Number]]:
    if column.kind is Kind.SCALAR:
        return {name: list(column.items)}
    parts = [summary(item) for item in column.items]
    return {f"{name}/{part}": [each[part] for each in parts] for part in parts[0]}


def _clean(name: str) -> str:
    """Convert a name to one that MLflow accepts.

    >>> _clean("params['w'][0]"), _clean("loss@dropped")
    ('params/w/0', 'loss_dropped')
    """
    name = re.sub(r"\[['\"]?(.*?)['\"]?\]", r"/\1", name)
    name = re.sub(r"[^/\w.\- :]", "_", name, flags=re.ASCII)
    return re.sub(r"/{2,}", "/", name).strip("/") or "_"
