"""What all displays have in common: a thread that draws, and a warning if drawing fails."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from sawlog.sinks._console._dashboard_state import Snapshot

if TYPE_CHECKING:
    from rich.console import Console


class Board(Protocol):
    """The part of a dashboard that a display uses."""

    title: str
    refresh: float
    every: float

    def snapshot(self, most: int | None = None, points: int = 40) -> Snapshot:
        """Return the data of at most ``most`` names, with trends of at most ``points`` points."""

    def tend(self) -> None:
        """End the runs of sinks that were garbage collected."""

    @property
    def version(self) -> int:
        """A number that changes whenever something is logged."""


class Display(Protocol):
    """A place where dashboards are shown."""

    def add(self, board: Board) -> None:
        """Show a dashboard from now on."""

    def remove(self, board: Board) -> None:
        """Show the last state of a dashboard, and stop updating it."""

    def flush(self) -> None:
        """Flush buffered output."""


class Ticker:
    """A thread that calls ``tick`` at an interval, until it is stopped or the call fails."""

    def __init__(self, tick: Callable[[], None], seconds: float) -> None:
        self._tick, self._seconds = tick, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sawlog-console", daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
            self._thread.start()

    def _work(self) -> None:
        while not self._stopped.wait(self._seconds):
            with warned() as worked:
                self._tick()
            if not worked:
                return

    def stop(self) -> None:
        """Stop, and wait until a call that is running has returned."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


@contextlib.contextmanager
def warned() -> Iterator[list[bool]]:
    """Turn an error inside the block into a warning; the list it yields is empty after an error."""
    worked = [True]
    try:
        yield worked
    except (Exception, SystemExit) as error:  # rich exits if a pipe is broken
        worked.clear()
        warnings.warn(
            f"The console stopped showing logs: {type(error).__name__}: {error}. Other sinks "
            "are not affected.",
            RuntimeWarning,
            stacklevel=3,
        )


def has_unicode(console: Console) -> bool:
    """Return whether a console can show more than ASCII."""
    return console.encoding.lower().startswith("utf")


def isatty(console: Console) -> bool:
    """Return whether a console is a terminal; rich may treat a file as one on request."""
    try:
        return bool(console.file.isatty())
    except (AttributeError, ValueError):
        return False
