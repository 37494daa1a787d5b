"""``LiveSource``: the parts of a page about a folder whose runs appear, grow and disappear."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sawlog.inspect import find_runs
from sawlog.report._source import PageOptions, PageRun, PageSource, page_run

_FRESH = 1.0  # seconds for which the list of runs is not read again
_KEPT = 64  # parts that are remembered


class LiveSource(PageSource):
    """As :class:`PageSource`, for one folder; runs are found again as they appear.

    A part is computed again when the files of its run have changed. Nothing is written.
    """

    def __init__(self, folder: Path, options: PageOptions) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._found_at = 0.0
        self._known: dict[Path, tuple[Any, PageRun]] = {}
        self._made: dict[str, tuple[Any, dict[str, Any]]] = {}
        super().__init__([folder], options)
        self.live = True

    def find(self) -> dict[str, PageRun]:
        """Return the runs as they are now; only those that changed are read again."""
        known: dict[Path, tuple[Any, PageRun]] = {}
        for path in find_runs(self._folder):
            mark = tuple(sorted(_marks(path)))
            before = self._known.get(path)
            fresh = before is None or before[0] != mark
            known[path] = (mark, page_run(path, self._folder)) if fresh or not before else before
        self._known = known
        self._found_at = time.monotonic()
        self.left_out = 0
        return {run.id: run for _, run in known.values()}

    def part(self, name: str) -> dict[str, Any]:
        """Compute a part, unless nothing changed since it was computed."""
        with self._lock:  # one at a time: the page asks for several at once
            if name == "index" and time.monotonic() - self._found_at > _FRESH:
                self.runs = self.find()
            if name == "index":
                return super().part(name)
            run = self.runs[name.split("/")[1]] if "/" in name else None
            if run is None:
                raise KeyError(name)
            mark = self._known[run.summary.path][0]
            before = self._made.get(name)
            if before is not None and before[0] == mark:
                return before[1]
            made = super().part(name)
            self._made[name] = (mark, made)
            while len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
            return made


def _marks(run: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of the files that tell whether a run changed."""
    for pattern in ("writers/*.json", "**/writers/*.json", "run.json", "**/store.json"):
        for file in run.glob(pattern):
            try:
                status = file.stat()
            except OSError:
                continue
            yield str(file), status.st_size, status.st_mtime_ns
