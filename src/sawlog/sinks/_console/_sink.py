"""``ConsoleSink``: one run on the console."""

from __future__ import annotations

import weakref
from typing import Any

from sawlog._validate import instance, optional, positive_integer, string
from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks._base import BaseSink
from sawlog.sinks._console._dashboard import Dashboard


class ConsoleSink(BaseSink):
    """Shows a run on the console: last values, trends, speed and remaining time.

    It keeps no logs: its memory does not grow with their number. It needs the extra ``cli``.

    Args:
        name: the name of the run. If a run of this name is running on the same dashboard, a number
            is added; if one has ended, it is resumed.
        total: the number of steps, if known; None is that of the dashboard.
        dashboard: where the run is shown. Runs that share a dashboard share a table of their means
            and of the standard deviation over runs. None creates a dashboard for this run.
        options: options of :class:`Dashboard`, if none is given: ``title``, ``names``,
            ``refresh``, ``every``, ``live``, ``console``, ``file``.

    For arrays the table shows the mean, the standard deviation and the range of their elements, for
    complex numbers the real and the imaginary part. ``flush`` returns when all entries are counted
    and printed lines are in the file; the table on the screen follows.

    Raises:
        ArgumentError: an argument is invalid, or both a dashboard and its options are given.
        MissingPackageError: rich is not installed.

    >>> import io, numpy as np
    >>> from sawlog.records import Entries, Records
    >>> file = io.StringIO()
    >>> with ConsoleSink("mnist", total=100, file=file) as sink:
    ...     steps = {"step": np.arange(100)}
    ...     sink.write(Records({"loss": Entries(1 / (1 + np.arange(100)), steps)}))
    >>> print(file.getvalue())
    sawlog  mnist finished  step 99 / 100 ... 100%  loss=0.01000
    <BLANKLINE>
    """

    def __init__(
        self,
        name: str = "run",
        *,
        total: int | None = None,
        dashboard: Dashboard | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        string("name", name)
        if dashboard is not None and options:
            raise ArgumentError(
                f"`dashboard` and {', '.join(f'`{option}`' for option in options)} exclude each "
                f"other. Hint: Dashboard({', '.join(f'{option}=...' for option in options)})."
            )
        if dashboard is not None:
            instance("dashboard", dashboard, Dashboard)
        total = optional(positive_integer, "total", total)
        self._dashboard = Dashboard(**options) if dashboard is None else dashboard
        self._run = self._dashboard.begin(name, total)
        self._finalizer = weakref.finalize(self, self._dashboard.forget, self._run)
        self._finalizer.atexit = False  # dashboards end after the runs of loggers

    def __repr__(self) -> str:
        return f"ConsoleSink({self._run.name!r})"

    @property
    def name(self) -> str:
        """The name of the run on the console."""
        return self._run.name

    @property
    def dashboard(self) -> Dashboard:
        """The dashboard that shows it."""
        return self._dashboard

    def _write(self, records: Records) -> None:
        self._dashboard.take(self._run, records)

    def _flush(self) -> None:
        self._dashboard.flush()

    def _close(self) -> None:
        self._finalizer.detach()
        self._dashboard.finish(self._run, self._failed)
