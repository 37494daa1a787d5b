"""``TrackerSink``: the base of the sinks of trackers."""

from __future__ import annotations

import abc
from collections.abc import Callable

from sawlog._lifecycle import Stage, close_at_exit
from sawlog.records import Records
from sawlog.sinks._base import BaseSink
from sawlog.sinks._logdict_metadata import DisplayedNames
from sawlog.sinks._values import TrackerGroup, XAxis, groups


class TrackerSink(BaseSink):
    """A sink that writes groups of columns to one run of a tracker.

    ``{"loss": {"policy": x}}``, logged from JAX, has the name ``loss/policy``.

    After ``fail()``, and after an exception in a ``with`` block, ``close`` marks the run as failed
    if the tracker has such a status. A sink that is left open is closed at the end of the program.
    """

    def __init__(self, *, images: bool, histograms: bool, x: str | XAxis | None = None) -> None:
        super().__init__()
        self._shown = DisplayedNames()
        self._x = x if isinstance(x, XAxis) else XAxis(x)
        self._images = images
        self._histograms = histograms
        self._counts: dict[str, int] = {}
        self._cancel_exit: Callable[[], None] | None = None

    @abc.abstractmethod
    def _write_group(self, group: TrackerGroup) -> None:
        """Write all the rows of a group, in order."""

    @abc.abstractmethod
    def _finish(self, failed: bool) -> None:
        """Write pending rows, and end the run."""

    def _check(self, found: list[TrackerGroup]) -> None:
        """Refuse values that the tracker cannot take, before anything is written."""

    def _write(self, records: Records) -> None:
        if self._cancel_exit is None:
            self._cancel_exit = close_at_exit(self, Stage.STORES)  # after Async, which writes to it
        records = self._shown.records(records)
        images, histograms = self._images, self._histograms
        found = groups(records, self._counts, images=images, histograms=histograms, x=self._x)
        self._check(found)
        for group in found:
            self._write_group(group)
            for name in group.columns:
                self._counts[name] = self._counts.get(name, 0) + len(group)

    def _close(self) -> None:
        if self._cancel_exit is not None:
            self._cancel_exit()  # failures now reach the caller of close
        self._x.warn()
        self._finish(self._failed)
