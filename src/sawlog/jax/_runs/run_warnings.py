"""Warnings about the runs of a logger: one for all seeds that have the same to report."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable

from sawlog.errors import AppendWarning, SinkWarning

_MOST = 8  # runs in one warning


class RunWarnings:
    """Warns about runs that are appended to, and about runs whose sinks fail.

    The first run of each kind is named at once. With many seeds, one cause applies to many runs;
    the others are named when runs end.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._appended: list[str] = []  # not yet named
        self._warned = False
        self._failing: set[str] = set()
        self._failed: dict[str, str] = {}  # ended, and not yet named

    def appends_to(self, run: str) -> None:
        """Record a run that existed before this program."""
        with self._lock:
            self._appended.append(run)

    def fails(self, run: str, text: str) -> None:
        """Record a report about a run: the first is about its failure, the second about its end."""
        with self._lock:
            if run in self._failing:
                self._failing.remove(run)
                self._failed[run] = text
                return
            first = not self._failing and not self._failed
            self._failing.add(run)
        if first:
            self._warn_failed(
                f"the run {run!r}: {text} Runs that fail after it are named when they end."
            )

    def started(self) -> None:
        """Warn after runs were opened, unless this warned of appending before."""
        if self._appended and not self._warned:
            self._warn_appended("appends to")

    def ended(self) -> None:
        """Warn after runs were closed: of all that were not named yet."""
        if self._appended:
            self._warn_appended("also appended to" if self._warned else "appended to")
        with self._lock:
            failed, self._failed = self._failed, {}
        if failed:
            listed = "\n".join(f"  {run}: {text}" for run, text in list(failed.items())[:_MOST])
            more = f"\n  and {len(failed) - _MOST} more" if len(failed) > _MOST else ""
            self._warn_failed(f"{len(failed)} of its runs failed and have ended:\n{listed}{more}")

    def _warn_appended(self, verb: str) -> None:
        with self._lock:
            runs, self._appended, self._warned = self._appended, [], True
        count = "a run that" if len(runs) == 1 else f"{len(runs)} runs that"
        listed = ", ".join(runs[:_MOST]) + (", ..." if len(runs) > _MOST else "")
        warnings.warn(
            f"{self._logger} {verb} {count} existed before: {listed}. Hint: exists='replace' "
            "deletes the old logs first, exists='error' refuses, and another folder, name= or "
            "group= keeps both.",
            AppendWarning,
            stacklevel=4,
        )

    def _warn_failed(self, text: str) -> None:
        warnings.warn(f"{self._logger}: {text}", SinkWarning, stacklevel=3)


def warn_ended(each: Iterable[RunWarnings]) -> None:
    """Emit pending warnings after runs were closed."""
    for own in each:
        own.ended()
