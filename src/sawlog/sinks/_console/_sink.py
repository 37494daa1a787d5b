"""``ConsoleSink``: one run on the console."""

from __future__ import annotations

import weakref
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks._base import BaseSink
from sawlog.sinks._console._dashboard import Dashboard, checked_total


class ConsoleSink(BaseSink):
    """Shows a run on the console: last values, their course, how fast it goes and how long still.

    It keeps no logs: its memory does not grow with their number.

    Args:
        name: what to call the run. Where a run of this name is running on the same dashboard, a
            number is added; where one has ended, this goes on with it.
        total: how many steps it has, if that is known; None is what the dashboard says.
        dashboard: where it is shown. Runs that share one are in one table: their means, and the
            standard deviation over the runs. None makes a dashboard for this run.
        options: those of :class:`Dashboard`, where none is given: ``title``, ``names``,
            ``refresh``, ``every``, ``live``, ``console``, ``file``.

    Of arrays the table has the mean, the standard deviation and the range of their elements, of
    complex numbers the real and the imaginary part. ``flush`` returns when everything is counted,
    and lines that were said are in the file; the picture on the screen follows.

    Raises:
        ArgumentError: an argument makes no sense, or both a dashboard and its options are given.

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
        if not isinstance(name, str):
            raise ArgumentError(f"name must be a string, got {name!r}.")
        if dashboard is not None and options:
            raise ArgumentError(
                f"The dashboard that was given has its own {', '.join(options)}. "
                f"Hint: Dashboard({', '.join(f'{option}=...' for option in options)})."
            )
        if dashboard is not None and not isinstance(dashboard, Dashboard):
            raise ArgumentError(f"dashboard must be a Dashboard, got {dashboard!r:.200}.")
        total = checked_total(total)
        self._dashboard = Dashboard(**options) if dashboard is None else dashboard
        self._run = self._dashboard.begin(name, total)
        self._finalizer = weakref.finalize(self, self._dashboard.forget, self._run)
        self._finalizer.atexit = False  # the dashboard sees to that, after the runs of loggers

    def __repr__(self) -> str:
        return f"ConsoleSink({self._run.name!r})"

    @property
    def name(self) -> str:
        """What the run is called on the console."""
        return self._run.name

    @property
    def dashboard(self) -> Dashboard:
        """Where it is shown."""
        return self._dashboard

    def _write(self, records: Records) -> None:
        self._dashboard.take(self._run, records)

    def _flush(self) -> None:
        self._dashboard.flush()

    def _close(self) -> None:
        self._finalizer.detach()
        self._dashboard.finish(self._run, self._failed)
