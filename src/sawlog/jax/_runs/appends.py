"""What is said of runs that are there already and go on: once, however many seeds there are."""

from __future__ import annotations

import threading
import warnings

from sawlog.errors import AppendWarning

_MOST = 8


class Appends:
    """Warns of the first runs that are appended to, and of the others when runs end."""

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._new: list[str] = []
        self._told = False

    def add(self, run: str) -> None:
        """Note a run that was there before this program."""
        with self._lock:
            self._new.append(run)

    def tell_first(self) -> None:
        """Warn, unless that was done before."""
        if self._new and not self._told:
            self._tell("goes on with")

    def tell_rest(self) -> None:
        """Warn of those that came after the first warning."""
        if self._new:
            self._tell("also went on with" if self._told else "went on with")

    def _tell(self, verb: str) -> None:
        with self._lock:
            runs, self._new, self._told = self._new, [], True
        count = "a run that was" if len(runs) == 1 else f"{len(runs)} runs that were"
        listed = ", ".join(runs[:_MOST]) + (", ..." if len(runs) > _MOST else "")
        warnings.warn(
            f"{self._logger} {verb} {count} there before, and appends to what is there: "
            f"{listed}. Hint: exists='replace' starts anew, exists='error' refuses, and another "
            "folder, name= or group= keeps both.",
            AppendWarning,
            stacklevel=4,
        )
