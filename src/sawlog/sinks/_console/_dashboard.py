"""``Dashboard``: the runs that are shown together."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TextIO, TypeVar

import rich
from rich.console import Console

from sawlog._exit import ended_badly
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records
from sawlog.sinks._asked import Asked
from sawlog.sinks._base import checked_count
from sawlog.sinks._console import _output
from sawlog.sinks._console._digest import digests
from sawlog.sinks._console._runs import Run, Status
from sawlog.sinks._console._showing import Output
from sawlog.sinks._console._state import Snapshot, State
from sawlog.sinks._notes import Shown, is_value, matches
from sawlog.sinks._select import _patterns

Self = TypeVar("Self", bound="Dashboard")


class Dashboard:
    """A table of everything that several runs log, on the terminal while they run.

    Several :class:`ConsoleSink` share one. It appears when the first run begins, and its last state
    stays when the last one has ended; inside of a ``with`` it waits for the end of that, so that
    runs one after the other are in one table.

    At a terminal the table is drawn again and again below what the program prints. In a notebook it
    is part of the cell's output. Elsewhere, as in a file or a CI log, there is a line every so
    often and one at the end.

    Args:
        title: the heading.
        total: how many steps each run has, if that is known: then there are a bar and the remaining
            time. Steps are those of the step axis ``step``, from 0 on, or else entries.
        names: patterns of the names to show, as ``["loss", "eval/*"]``; None shows all. Those that
            do not fit on the screen are counted below the table.
        refresh: how often a second the table is drawn.
        every: seconds between quiet lines.
        live: whether to draw a table; None does where somebody can watch it.
        console: the ``rich`` console to use; None is the one that rich uses itself.
        file: a file to write to instead, as ``sys.stderr``.

    Raises:
        ArgumentError: an argument makes no sense.

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
            raise ArgumentError("console and file say both where to write. Hint: give one of them.")
        if not isinstance(title, str):
            raise ArgumentError(f"title must be a string, got {title!r}.")
        self.title = title
        self.total = checked_total(total)
        self.refresh = _checked_positive(refresh, "refresh")
        self.every = _checked_positive(every, "every")
        self._names = None if names is None else _patterns(names, "names")
        self._chosen: dict[str, bool] = {}
        self._asked = Asked("The console", self._names or ())
        self._shown = Shown()
        self._live = live
        self._console = Console(file=file) if file is not None else console
        self._state = State(_clock)
        self._lock = threading.RLock()
        self._output: Output | None = None
        self._held = False
        self._forgotten: collections.deque[Run] = collections.deque()

    def __repr__(self) -> str:
        return f"Dashboard({self.title!r})"

    # -- what sinks do ----------------------------------------------------------------------------

    def begin(self, name: str, total: int | None = None) -> Run:
        """Show a run from now on; one that has ended goes on."""
        with self._lock:
            run = self._state.open(name, self.total if total is None else total)
            if self._output is None:
                console = rich.get_console() if self._console is None else self._console
                self._output = _output.shown(self, console, self._live)
                _output.open_boards[id(self)] = self._abandon
            return run

    def take(self, run: Run, records: Records) -> None:
        """Take in what a run has logged."""
        self._asked.see(records.items())
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
        """Have every line that was said in the file."""
        output = self._output
        if output is not None:
            output.flush()

    def finish(self, run: Run, failed: bool) -> None:
        """End a run."""
        self._finish(run, Status.FAILED if failed else Status.FINISHED)

    def _finish(self, run: Run, status: Status) -> None:
        self._state.close(run, status)
        if not self._held and not self._state.running:
            self._end()

    def forget(self, run: Run) -> None:
        """Have a run ended whose sink is garbage. This may happen anywhere, so it takes no lock."""
        self._forgotten.append(run)

    def tend(self) -> None:
        """Close the runs of sinks that were forgotten."""
        while self._forgotten:
            self._finish(self._forgotten.popleft(), Status.LEFT)

    # -- what is shown ----------------------------------------------------------------------------

    def snapshot(self, most: int | None = None, points: int = 40) -> Snapshot:
        """What is known: of at most so many names, with courses of at most so many points."""
        return self._state.snapshot(most, points)

    @property
    def version(self) -> int:
        """Another number whenever something was logged."""
        return self._state.version

    # -- its life ---------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stay when the last run ends, until :meth:`close`."""
        self._held = True

    def close(self) -> None:
        """End, if no run is running; runs that are show it until they end."""
        self._held = False
        if not self._state.running:
            self._end()

    def _abandon(self) -> None:
        """At the end of the program: whatever is still running has been left."""
        self._state.leave(Status.FAILED if ended_badly() else Status.LEFT)
        self._end()

    def _end(self) -> None:
        with self._lock:  # not while it is removed, which waits for a thread that may need it
            output, self._output = self._output, None
            _output.open_boards.pop(id(self), None)
        if output is not None:
            output.remove(self)
        self._asked.warn()

    def __enter__(self: Self) -> Self:
        self.hold()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def checked_total(total: Any) -> int | None:
    """Refuse what is no number of steps."""
    return None if total is None else checked_count(total, "total, the number of steps,")


def _checked_positive(value: Any, what: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ArgumentError(f"{what} must be a number above 0, got {value!r}.")
    return float(value)
