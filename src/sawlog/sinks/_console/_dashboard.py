"""``Dashboard``: runs that are shown together."""

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self, TextIO

from sawlog._lifecycle import CloseOnExit, Stage, at_exit, ended_with_error
from sawlog._optional import require
from sawlog._turn import Turn
from sawlog._validate import optional, positive_integer, positive_number, string
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records
from sawlog.sinks._console._dashboard_state import DashboardState, Snapshot
from sawlog.sinks._console._digest import digests
from sawlog.sinks._console._display import Display
from sawlog.sinks._console._runs import ConsoleRun, RunStatus
from sawlog.sinks._logdict_metadata import DisplayedNames, is_value, matches
from sawlog.sinks._select import _patterns
from sawlog.sinks._unmatched import UnmatchedPatterns

if TYPE_CHECKING:
    from rich.console import Console


class Dashboard(CloseOnExit):
    """Shows a live table of what several runs log.

    Several :class:`ConsoleSink` share one. The table appears when the first run starts, and its
    last state stays when the last run has ended. As a context manager, the dashboard stays until
    the end of the block, so that runs one after the other share a table.

    At a terminal the table is redrawn below what the program prints. In a notebook it is part of
    the cell's output. Elsewhere, such as in a file or a CI log, a line is printed at an interval,
    and one at the end.

    Args:
        title: the heading.
        total: the number of steps of each run, if known; shows a progress bar and the remaining
            time. Steps are those of the step axis ``step``, from 0 on, or else entries.
        names: patterns of the names to show, such as ``["loss", "eval/*"]``; None shows all. Names
            that do not fit on the screen are counted below the table.
        refresh: how many times per second the table is drawn.
        every: seconds between lines, if no table is drawn.
        live: whether to draw a table; None draws one at a terminal and in a notebook.
        console: the ``rich`` console to use; None is the global console of rich.
        file: a file to write to instead, such as ``sys.stderr``.

    Raises:
        ArgumentError: an argument is invalid.
        MissingPackageError: rich is not installed.

    >>> import io, numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import ConsoleSink
    >>> file = io.StringIO()
    >>> with Dashboard("demo", file=file) as dashboard:
    ...     for seed in range(2):
    ...         with ConsoleSink(f"seed-{seed}", dashboard=dashboard) as sink:
    ...             sink.write(Records({"loss": Entries(np.array([0.5 + seed]))}))
    >>> print(file.getvalue())
    demo  2 runs finished ... loss=1.000±0.50
    <BLANKLINE>
    """

    def __init__(
        self,
        title: str = "sawlog",
        *,
        total: int | None = None,
        names: str | Iterable[str] | None = None,
        refresh: float = 4.0,
        every: float = 10.0,
        live: bool | None = None,
        console: Console | None = None,
        file: TextIO | None = None,
        _clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if console is not None and file is not None:
            raise ArgumentError("`console` and `file` exclude each other. Hint: give one of them.")
        self.title = string("title", title)
        self.total = optional(positive_integer, "total", total)
        self.refresh = positive_number("refresh", refresh)
        self.every = positive_number("every", every)
        self._names = None if names is None else _patterns(names, "names")
        self._chosen: dict[str, bool] = {}
        self._unmatched = UnmatchedPatterns("The console", self._names or ())
        self._shown = DisplayedNames()
        self._live = live
        require("rich", "cli", "The console")
        if file is not None:
            from rich.console import Console

            console = Console(file=file)
        self._console = console
        self._state = DashboardState(_clock)
        self._turn = Turn()
        self._display: Display | None = None
        self._held = False
        self._forgotten: collections.deque[ConsoleRun] = collections.deque()

    def __repr__(self) -> str:
        return f"Dashboard({self.title!r})"

    # -- called by sinks --------------------------------------------------------------------------

    def begin(self, name: str, total: int | None = None) -> ConsoleRun:
        """Start a run, or resume one of this name that has ended, and show it."""
        with self._turn.taken():
            run = self._state.open(name, self.total if total is None else total)
            if self._display is None:
                import rich

                from sawlog.sinks._console import _output

                console = rich.get_console() if self._console is None else self._console
                self._display = _output.shown(self, console, self._live)
                _open_dashboards[id(self)] = self._abandon
            return run

    def take(self, run: ConsoleRun, records: Records) -> None:
        """Add what a run has logged."""
        self._unmatched.see(records.items())
        chosen = {
            name: entries
            for name, entries in records.items()
            if is_value(entries) and self._is_chosen(name, entries)
        }
        shown = self._shown.records(chosen)
        self._state.take(run, [d for pair in shown.items() for d in digests(*pair)])

    def _is_chosen(self, name: str, entries: Entries) -> bool:
        if self._names is None:
            return True
        if name not in self._chosen:
            self._chosen[name] = any(matches(name, entries, each) for each in self._names)
        return self._chosen[name]

    def flush(self) -> None:
        """Flush printed lines to the file."""
        display = self._display
        if display is not None:
            display.flush()

    def finish(self, run: ConsoleRun, failed: bool) -> None:
        """End a run."""
        self._finish(run, RunStatus.FAILED if failed else RunStatus.FINISHED)

    def _finish(self, run: ConsoleRun, status: RunStatus) -> None:
        self._state.close(run, status)
        if not self._held and not self._state.running:
            self._end()

    def forget(self, run: ConsoleRun) -> None:
        """End the run of a sink that was garbage collected, at the next tick.

        Garbage is collected anywhere, so no lock may be taken here.
        """
        self._forgotten.append(run)

    def tend(self) -> None:
        """End the runs of sinks that were garbage collected."""
        while self._forgotten:
            self._finish(self._forgotten.popleft(), RunStatus.LEFT)

    # -- called by displays -----------------------------------------------------------------------

    def snapshot(self, most: int | None = None, points: int = 40) -> Snapshot:
        """Return the data of at most ``most`` names, with trends of at most ``points`` points."""
        return self._state.snapshot(most, points)

    @property
    def version(self) -> int:
        """A number that changes whenever something is logged."""
        return self._state.version

    # -- start and end ----------------------------------------------------------------------------

    def hold(self) -> None:
        """Stay on the screen when the last run ends, until :meth:`close`."""
        self._held = True

    def close(self) -> None:
        """End now, or when the last running run ends."""
        self._held = False
        if not self._state.running:
            self._end()

    def _abandon(self) -> None:
        """End at the end of the program, with the runs that are still running."""
        self._state.leave(RunStatus.FAILED if ended_with_error() else RunStatus.LEFT)
        self._end()

    def _end(self) -> None:
        display = self._display
        try:
            with self._turn.taken():  # ended before ``remove``, which waits for a thread
                self._display = None
                _open_dashboards.pop(id(self), None)
            if display is not None:
                display.remove(self)
        except BaseException:  # Ctrl-C: the next call shows the last state
            if self._display is None and display is not None:
                self._display = display
                _open_dashboards[id(self)] = self._abandon
            raise
        self._unmatched.warn()

    def __enter__(self) -> Self:
        self.hold()
        return self


# -- the end of the program -----------------------------------------------------------------------

#: Dashboards that are shown.
_open_dashboards: dict[int, Callable[[], None]] = {}


def _end_all() -> None:
    for end in list(_open_dashboards.values()):
        end()


def _forget_all() -> None:
    """Forget all dashboards in a forked process, where their threads do not exist."""
    screens = sys.modules.get("sawlog.sinks._console._live_screen")
    if screens is not None:
        screens.forget_all()
    _open_dashboards.clear()


at_exit(_end_all, Stage.DISPLAYS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
