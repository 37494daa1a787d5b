"""Warnings about runs whose sinks fail while their programs continue."""

from __future__ import annotations

import threading
import warnings

from sawlog.errors import SinkWarning

_MOST = 8  # runs in one warning


class Failures:
    """Warns of the first run that fails, and of all failed runs when they end.

    With many seeds, one cause makes many runs fail; one warning is enough while they continue.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._ended: dict[str, str] = {}

    def report(self, run: str, text: str) -> None:
        """Record a report about a run: the first is about its failure, the second about its end."""
        with self._lock:
            if run in self._running:
                self._running.remove(run)
                self._ended[run] = text
                return
            first = not self._running and not self._ended
            self._running.add(run)
        if first:
            self._warn(f"the run {run!r}: {text} Runs that fail after it are named when they end.")

    def warn_ended(self) -> None:
        """Warn of all failed runs that ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, {}
        if ended:
            listed = "\n".join(f"  {run}: {text}" for run, text in list(ended.items())[:_MOST])
            more = f"\n  and {len(ended) - _MOST} more" if len(ended) > _MOST else ""
            self._warn(f"{len(ended)} of its runs failed and have ended:\n{listed}{more}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._logger}: {text}", SinkWarning, stacklevel=3)
