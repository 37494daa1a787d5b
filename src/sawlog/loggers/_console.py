"""``ConsoleLogger``: show all runs in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sawlog.jax._runs.logger import Logger
from sawlog.jax._runs.runs import LoggerRun, RunState
from sawlog.sinks import ConsoleSink, Dashboard, Sink


class ConsoleLogger(Logger):
    """Show all runs on the console in one table: mean over the seeds, spread, trend, speed.

    Args:
        title: the heading.
        total: the number of steps of each run, if known: adds a progress bar and the remaining
            time.
        processes: which processes of a ``jax.distributed`` job show runs, see :class:`Logger`.
        options: those of :class:`sawlog.sinks.Dashboard`, such as ``names=["loss", "eval/*"]``,
            ``every=30.0``, the seconds between lines without a terminal, or ``file=sys.stderr``.

    The table appears when the first run starts, and remains when all are finished. Logs are not
    stored: ``MultiLogger(SaveLogger("runs"), ConsoleLogger())`` does both.
    """

    def __init__(
        self,
        title: str = "sawlog",
        *,
        total: int | None = None,
        processes: str = "first",
        **options: Any,
    ) -> None:
        super().__init__(processes=processes)
        self.dashboard = Dashboard(title, total=total, **options)

    def __repr__(self) -> str:
        return f"ConsoleLogger({self.dashboard.title!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return a run in the table."""
        return ConsoleSink(name, dashboard=self.dashboard)

    def _start(self, *about: Any) -> LoggerRun:
        self.dashboard.hold()  # one table, also for runs that are finished one by one
        return super()._start(*about)

    def finish(self, state: RunState | None = None) -> None:
        """End the runs of ``state``, or all of them and the table, see :meth:`Logger.finish`."""
        try:
            super().finish(state)
        finally:
            if state is None:
                self.dashboard.close()
