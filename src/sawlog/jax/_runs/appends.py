"""Warnings about runs that already existed and are appended to: one for all seeds."""

from __future__ import annotations

import threading
import warnings

from sawlog.errors import AppendWarning

_MOST = 8  # names in one warning


class Appends:
    """Warns of the first runs that are appended to, and of later ones when runs end."""

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._new: list[str] = []
        self._warned = False

    def add(self, run: str) -> None:
        """Record a run that existed before this program."""
        with self._lock:
            self._new.append(run)

    def warn_first(self) -> None:
        """Warn, unless a warning was emitted before."""
        if self._new and not self._warned:
            self._warn("appends to")

    def warn_rest(self) -> None:
        """Warn of the runs that were added after the first warning."""
        if self._new:
            self._warn("also appended to" if self._warned else "appended to")

    def _warn(self, verb: str) -> None:
        with self._lock:
            runs, self._new, self._warned = self._new, [], True
        count = "a run that" if len(runs) == 1 else f"{len(runs)} runs that"
        listed = ", ".join(runs[:_MOST]) + (", ..." if len(runs) > _MOST else "")
        warnings.warn(
            f"{self._logger} {verb} {count} existed before: {listed}. Hint: exists='replace' "
            "deletes the old logs first, exists='error' refuses, and another folder, name= or "
            "group= keeps both.",
            AppendWarning,
            stacklevel=4,
        )
