"""``WandbSink``: a run of Weights & Biases."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog._optional import require
from sawlog.errors import StoreWriteError
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._values import Kind, TrackerColumn, TrackerGroup, XAxis, bins, pixels
from sawlog.sinks._wandb_file import has_ended, is_known

PATIENCE = 60.0
"""Seconds to wait for W&B's own process to write the end of its file."""


class WandbSink(TrackerSink):
    """Write to a new run of Weights & Biases; several may be open at a time.

    Names with the same steps are logged together, one row for each entry, and the step axes are
    metrics in that row: ``sawlog.log({"loss": x}, step=i, epoch=e)`` sends ``loss``, ``step`` and
    ``epoch``, and ``define_metric("loss", step_metric="step")`` makes charts use the step. That is
    the first axis, or the axis ``x``. W&B's own ``_step`` counts the rows.

    Args:
        project: the project; None uses the one of the environment.
        name: the name of the run.
        config: settings to save with the run.
        dir: the folder in which W&B creates its folder ``wandb``; None uses the current one.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``; None uses that of the environment.
        images: whether arrays of two or three axes are images; if not, they are histograms.
        histograms: whether to write histograms; if not, they are dropped.
        x: the step axis for charts; by default, and for logs without it, the first one.
        options: those of ``wandb.init``: ``entity``, ``group``, ``tags``, ``id``, ``resume``, ...

    Numbers are ``float64``, with NaN and infinities. ``flush`` returns when W&B's own process has
    received everything; only ``close`` waits until it is in the file, since W&B cannot report that
    earlier. The output of the program is not recorded, because it would go to all runs;
    ``settings=wandb.Settings(console="auto")`` records it.

    Raises:
        MissingPackageError: ``wandb`` is not installed, or ``pillow``, which its images need.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        dir: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        images: bool = True,
        histograms: bool = True,
        x: str | XAxis | None = None,
        **options: Any,
    ) -> None:
        super().__init__(images=images, histograms=histograms, x=x)
        self._wandb: Any = require("wandb", "wandb", type(self).__name__)
        if dir is not None:
            # Otherwise W&B warns and uses another folder.
            Path(dir).mkdir(parents=True, exist_ok=True)
            options["dir"] = os.fspath(dir)
        options.setdefault("settings", self._wandb.Settings(console="off"))
        options.setdefault("reinit", "create_new")
        self._run: Any = self._wandb.init(
            project=project, name=name, config=dict(config or {}), mode=mode, **options
        )
        self._defined: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"WandbSink(project={self._run.project!r}, name={self._run.name!r})"

    @property
    def run(self) -> Any:
        """The ``wandb.Run``."""
        return self._run

    def _check(self, found: list[TrackerGroup]) -> None:
        if any(c.kind is Kind.IMAGE for group in found for c in group.columns.values()):
            require("PIL", "wandb", "An image in WandbSink")

    def _write_group(self, group: TrackerGroup) -> None:
        if group.x is not None:
            self._define(group, group.x)
        names = (*group.axes, *group.columns)
        rows = zip(
            *group.axes.values(), *(self._items(c) for c in group.columns.values()), strict=True
        )
        log = self._run.log
        for row in rows:
            log({name: item for name, item in zip(names, row, strict=True) if item is not None})

    def _define(self, group: TrackerGroup, axis: str) -> None:
        """Define the step metric of each name, once."""
        for name in (*group.columns, *group.axes):
            if name != axis and (name, axis) not in self._defined:
                self._defined.add((name, axis))
                if "*" not in name:  # a wildcard in definitions
                    # The step is in every row, so W&B need not fill it in.
                    self._run.define_metric(name, step_metric=axis, step_sync=False)

    def _items(self, column: TrackerColumn) -> list[Any]:
        if column.kind is Kind.SCALAR:
            return list(column.items)
        if column.kind is Kind.IMAGE:
            return [self._wandb.Image(pixels(item)) for item in column.items]
        counted = map(bins, column.items)
        return [
            None if each is None else self._wandb.Histogram(np_histogram=each) for each in counted
        ]

    def _flush(self) -> None:
        dict(self._run.summary)  # the answer follows everything sent before

    def _finish(self, failed: bool) -> None:
        offline, file = self._run.offline, self._run.settings.sync_file
        self._run.finish(exit_code=int(failed))
        if offline and is_known(file):
            self._wait_for_the_end(file)

    def _wait_for_the_end(self, file: str) -> None:
        """Wait until the file is complete, as ``finish`` returns earlier."""
        end = time.monotonic() + PATIENCE
        while not has_ended(file):
            if time.monotonic() > end:
                raise StoreWriteError(
                    f"{self!r}: W&B did not write the end of {file} within {PATIENCE:g} seconds, "
                    "so the last rows may be missing. Probably its own process was killed, or the "
                    "disk is full. Hint: read debug-internal.log in the folder logs next to it."
                )
            time.sleep(0.005)
