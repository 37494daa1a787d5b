"""``TrackerSink``: what the sinks of all trackers have in common."""

from __future__ import annotations

import abc
from types import TracebackType

from sawlog.records import Records
from sawlog.sinks._base import BaseSink
from sawlog.sinks._values import Group, groups


class TrackerSink(BaseSink):
    """A sink that writes groups of columns to one run of a tracker.

    ``close(failed=True)`` marks the run as failed where the tracker can, and so does leaving the
    ``with`` by an error.
    """

    def __init__(self, *, images: bool, histograms: bool) -> None:
        super().__init__()
        self._images = images
        self._histograms = histograms
        self._counts: dict[str, int] = {}
        self._failed = False

    @abc.abstractmethod
    def _write_group(self, group: Group) -> None:
        """Write all the rows of a group, in order."""

    @abc.abstractmethod
    def _finish(self, failed: bool) -> None:
        """Write what is left, and end the run."""

    def _check(self, found: list[Group]) -> None:
        """Refuse what the tracker cannot take, before anything is written."""

    def _write(self, records: Records) -> None:
        found = groups(records, self._counts, images=self._images, histograms=self._histograms)
        self._check(found)
        for group in found:
            self._write_group(group)
            for name in group.columns:
                self._counts[name] = self._counts.get(name, 0) + len(group)

    def _close(self) -> None:
        self._finish(self._failed)

    def close(self, failed: bool = False) -> None:
        """Flush and end the run, as failed or as finished.

        A second call does nothing; where the first failed, it tries again.
        """
        self._failed = self._failed or failed
        super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._failed = self._failed or error is not None
        super().__exit__(kind, error, at)
