"""``TrackioSink``: a run of Trackio."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Mapping
from typing import Any

from sawlog._optional import require
from sawlog.errors import StoreWriteError
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._values import Kind, TrackerColumn, TrackerGroup, XAxis, bins, pixels

PATIENCE = 30.0  # seconds


class TrackioSink(TrackerSink):
    """Write to a new run of Trackio; several may be open at a time.

    Names with the same steps are logged together, one row for each entry. Steps are the integers of
    the first step axis, or of the axis ``x``, or else the index of the entry; other axes are
    metrics in the row.

    Trackio keeps local projects in the folder of the environment variable ``TRACKIO_DIR``, read
    when it is first imported. If it cannot write there it only warns, so ``flush`` and ``close``
    check that everything arrived, and raise if not.

    Args:
        project: the project.
        name: the name of the run; None lets Trackio choose one.
        config: settings to save with the run.
        images: whether arrays of two or three axes are images; if not, they are histograms.
        histograms: whether to write histograms; if not, they are dropped.
        x: the step axis for charts; by default, and for logs without it, the first one.
        options: those of ``trackio.init``, such as ``group``, ``space_id`` or ``server_url``.

    Numbers are ``float64``, with NaN and infinities. Trackio has no status of runs: a failed run
    gets an alert of the level ``error``. Trackio renames metrics called ``step``, ``time``,
    ``project``, ``run``, ``timestamp`` or ``metrics`` to ``__step`` and so on.

    Raises:
        MissingPackageError: ``trackio`` is not installed.
        StoreWriteError: from ``flush`` and ``close``: Trackio lost rows.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        images: bool = True,
        histograms: bool = True,
        x: str | XAxis | None = None,
        **options: Any,
    ) -> None:
        super().__init__(images=images, histograms=histograms, x=x)
        self._trackio: Any = require("trackio", "trackio", type(self).__name__)
        options.setdefault("embed", False)
        options.setdefault("auto_log_gpu", False)
        options.setdefault("auto_log_cpu", False)
        # Trackio ends the run of its context when the next one starts: give each its own context.
        self._run: Any = contextvars.Context().run(
            self._trackio.init, project, name, config=dict(config or {}), **options
        )
        self._rows = self._stored()  # those of a run that is continued

    def __repr__(self) -> str:
        return f"TrackioSink(project={self._run.project!r}, name={self._run.name!r})"

    @property
    def run(self) -> Any:
        """The ``trackio.Run``."""
        return self._run

    def _write_group(self, group: TrackerGroup) -> None:
        columns = {**group.others, **group.columns}
        rows = zip(*(self._items(column) for column in columns.values()), strict=True)
        for step, row in zip(group.steps, rows, strict=True):
            items = {k: v for k, v in zip(columns, row, strict=True) if v is not None}
            if items:
                self._run.log(items, step=step)
                self._rows += 1

    def _items(self, column: TrackerColumn) -> list[Any]:
        if column.kind is Kind.SCALAR:
            return list(column.items)
        if column.kind is Kind.IMAGE:
            return [self._trackio.Image(pixels(item)) for item in column.items]
        make = self._trackio.Histogram
        counted = map(bins, column.items)
        return [None if each is None else make(np_histogram=each) for each in counted]

    def _stored(self) -> int:
        """Return the number of rows of the run in the local database."""
        storage: Any = require("trackio.sqlite_storage", "trackio", type(self).__name__)
        return int(storage.SQLiteStorage.get_log_count(self._run.project, run_id=self._run.id))

    def _flush(self) -> None:
        """Wait for Trackio's own thread, which writes twice a second."""
        if self._run.url is not None:  # on a server, to which Trackio retries by itself
            return
        until = time.monotonic() + PATIENCE
        while (stored := self._stored()) < self._rows:
            if time.monotonic() > until:
                raise StoreWriteError(
                    f"{self!r}: {self._rows - stored} of {self._rows} rows are not in Trackio's "
                    "database. Probably its folder is full or cannot be written to; Trackio itself "
                    "only warns of that. Hint: read its warnings, and check TRACKIO_DIR."
                )
            time.sleep(0.02)

    def _finish(self, failed: bool) -> None:
        if failed:
            level = self._trackio.AlertLevel.ERROR
            self._run.alert("The run failed", level=level)
        self._run.finish()
        self._flush()
