"""What is said of runs whose sinks fail while their programs go on."""

from __future__ import annotations

import threading
import warnings

from sawlog.errors import SinkWarning

_MOST = 8


class Failures:
    """Warns of the first run that fails, and of all of them when runs end.

    With many seeds one cause makes many runs fail; one warning is enough while they go on.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._going_on: set[str] = set()
        self._ended: dict[str, str] = {}

    def report(self, run: str, text: str) -> None:
        """Take the report of a run: the first is of its failure, the second of its end."""
        with self._lock:
            if run in self._going_on:
                self._going_on.remove(run)
                self._ended[run] = text
                return
            first = not self._going_on and not self._ended
            self._going_on.add(run)
        if first:
            self._warn(f"the run {run!r}: {text} Runs that fail after it are named when they end.")

    def tell(self) -> None:
        """Warn of all runs that failed and ended since the last time."""
        with self._lock:
            ended, self._ended = self._ended, {}
        if ended:
            listed = "\n".join(f"  {run}: {text}" for run, text in list(ended.items())[:_MOST])
            more = f"\n  and {len(ended) - _MOST} more" if len(ended) > _MOST else ""
            self._warn(f"{len(ended)} of its runs failed and have ended:\n{listed}{more}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._logger}: {text}", SinkWarning, stacklevel=3)
