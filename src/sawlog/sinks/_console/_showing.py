"""What all outputs have in common: a thread that draws, and what happens when drawing fails."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console

from sawlog.sinks._console._state import Snapshot


class Board(Protocol):
    """What an output needs to know of a dashboard."""

    title: str
    refresh: float
    every: float

    def snapshot(self, most: int | None = None, points: int = 40) -> Snapshot:
        """What to show: at most so many names, courses of at most so many points."""

    def tend(self) -> None:
        """Close the runs of sinks that were forgotten."""

    @property
    def version(self) -> int:
        """Another number whenever something was logged."""


class Output(Protocol):
    """Where dashboards appear."""

    def add(self, board: Board) -> None:
        """Show a dashboard from now on."""

    def remove(self, board: Board) -> None:
        """Show its last state, and leave it."""

    def flush(self) -> None:
        """Have what was shown on its way."""


class Ticker:
    """A thread that calls ``tick`` every so many seconds, until it is stopped or that fails."""

    def __init__(self, tick: Callable[[], None], seconds: float) -> None:
        self._tick, self._seconds = tick, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sawlog-console", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter ends: only the last state counts
            self._thread.start()

    def _work(self) -> None:
        while not self._stopped.wait(self._seconds):
            with warned() as worked:
                self._tick()
            if not worked:
                return

    def stop(self) -> None:
        """Stop, and wait for the end of what is under way."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


@contextlib.contextmanager
def warned() -> Iterator[list[bool]]:
    """Warn of what goes wrong inside; the list that it gives is empty afterwards if so."""
    worked = [True]
    try:
        yield worked
    except (Exception, SystemExit) as error:  # rich exits where a pipe is broken
        worked.clear()
        warnings.warn(
            f"The console shows no more of the logs: {type(error).__name__}: {error}. What is "
            "logged elsewhere is not affected.",
            RuntimeWarning,
            stacklevel=3,
        )


def has_unicode(console: Console) -> bool:
    """Whether it can show more than ASCII."""
    return console.encoding.lower().startswith("utf")


def isatty(console: Console) -> bool:
    """Rich may have been told to colour what goes to a file."""
    try:
        return bool(console.file.isatty())
    except (AttributeError, ValueError):
        return False
