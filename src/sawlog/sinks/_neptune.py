"""``NeptuneSink``: a run of Neptune, in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sawlog._optional import require
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._values import (
    Kind,
    TrackerColumn,
    TrackerGroup,
    XAxis,
    flat_config,
    pixels,
    summary,
)

BATCH = 1000


class NeptuneSink(TrackerSink):
    """Write to a new run of Neptune, in its offline mode; several may be open at a time.

    Neptune's hosted service closed in March 2026, so runs cannot be uploaded. Offline mode still
    works: it writes lines of JSON to ``.neptune/offline`` in the current folder, or in the folder
    of the environment variable ``NEPTUNE_DATA_DIRECTORY``. This sink is for programs that read such
    files; otherwise choose another tracker.

    Steps are the integers of the first step axis, or of the axis ``x``, or else the index of the
    entry; other axes are series as well. Neptune has no histograms: arrays are summarized by the
    series ``name/mean``, ``name/std``, ``name/min`` and ``name/max``. Its series of numbers drop
    NaN and infinities, so these are texts in ``nonfinite/name``, with their steps. Neptune refuses
    a name that is the parent of another one, such as ``loss`` and ``loss/a``.

    Args:
        project: the project, such as ``"workspace/name"``.
        name: the name of the run.
        group: a group tag of the run, ``sys/group_tags``.
        config: settings to save with the run, under ``parameters``.
        images: whether arrays of two or three axes are images; if not, they are summarized.
        histograms: whether to summarize arrays; if not, they are dropped.
        x: the step axis for charts; by default, and for logs without it, the first one.
        options: those of ``neptune.init_run``.

    Raises:
        MissingPackageError: ``neptune`` is not installed.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        images: bool = True,
        histograms: bool = True,
        x: str | XAxis | None = None,
        **options: Any,
    ) -> None:
        super().__init__(images=images, histograms=histograms, x=x)
        self._neptune: Any = require("neptune", "neptune", type(self).__name__)
        self._types: Any = require("neptune.types", "neptune", type(self).__name__)
        options = {
            "mode": "offline",
            "capture_stdout": False,
            "capture_stderr": False,
            "capture_hardware_metrics": False,
            "capture_traceback": False,
            "source_files": [],
            "git_ref": False,
            **options,
        }
        self._name = name
        self._run: Any = self._neptune.init_run(project=project, name=name, **options)
        if group is not None:
            self._run["sys/group_tags"].add([group])
        for key, value in flat_config(config or {}).items():
            self._run[f"parameters/{key}"] = value if _is_simple(value) else str(value)

    def __repr__(self) -> str:
        return f"NeptuneSink(name={self._name!r})"

    @property
    def run(self) -> Any:
        """The ``neptune.Run``."""
        return self._run

    def _write_group(self, group: TrackerGroup) -> None:
        for name, column in {**group.columns, **group.others}.items():
            if column.kind is Kind.SCALAR:
                self._add(name, column.items, group.steps)
            elif column.kind is Kind.IMAGE:
                self._write_images(name, column, group.steps)
            else:
                parts = [summary(item) for item in column.items]
                for part in parts[0]:
                    self._add(f"{name}/{part}", [each[part] for each in parts], group.steps)

    def _add(self, name: str, items: Sequence[Any], steps: Sequence[int]) -> None:
        pairs = [(float(item), step) for item, step in zip(items, steps, strict=True)]
        self._extend(name, [pair for pair in pairs if math.isfinite(pair[0])])
        odd = [(repr(item), step) for item, step in pairs if not math.isfinite(item)]
        self._extend(f"nonfinite/{name}", odd)

    def _extend(self, path: str, pairs: Sequence[tuple[Any, int]]) -> None:
        for i in range(0, len(pairs), BATCH):
            items, steps = zip(*pairs[i : i + BATCH], strict=True)
            self._run[path].extend(list(items), steps=list(steps))

    def _write_images(self, name: str, column: TrackerColumn, steps: Sequence[int]) -> None:
        for item, step in zip(column.items, steps, strict=True):
            self._run[name].append(self._types.File.as_image(pixels(item) / 255.0), step=step)

    def _flush(self) -> None:
        self._run.wait(disk_only=True)

    def _finish(self, failed: bool) -> None:
        if failed:
            self._run["sys/failed"] = True
        self._run.stop()


def _is_simple(value: Any) -> bool:
    """Return whether Neptune accepts a setting of this type."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | str) or (isinstance(value, int) and abs(value) < 2**31)
