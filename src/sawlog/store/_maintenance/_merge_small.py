"""Small segments are merged as they come, by the writer that publishes them.

A program that flushes often leaves many small segments. Every sixteenth of a size become one of
the next size, so a store of n flushes has about 16 log16(n) segments, and every byte is written
about log16(n) times more. The merge is that of :func:`sawlog.store.compact`: of neighbours in
order, whoever wrote them, under the same lease, and as safe when it is killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sawlog.errors import StoreError
from sawlog.store._format._layout import Folder, Identity
from sawlog.store._format._segment import Segment
from sawlog.store._maintenance._replacements import (
    ReplacementWriter,
    remove_retired,
    retire,
    try_lease,
)
from sawlog.store._reading._catalog import Catalog

FAN = 16
_BITS = 4  # of a size: 2**4 == FAN
_FIRST = 14  # all below 2**14 bytes are of the same size
_LARGE = 16 << 20  # bytes: from here on segments are left to compaction


class SmallSegmentMerger:
    """What a writer does for the store beside writing.

    ``merge()`` is to be called after every ``FAN`` small publications, in a thread that may take a
    moment. It never raises for what only concerns the merge: what is not merged now is merged
    later, and what is damaged is reported to those who read.
    """

    def __init__(self, folder: Folder, identity: Identity, grace: float = 3600.0) -> None:
        self._folder, self._identity, self._grace = folder, identity, grace
        self._catalog: Catalog | None = None
        self._output: ReplacementWriter | None = None
        self._small = 0

    def published(self, nbytes: int) -> int:
        """Note a publication; when there were enough small ones, merge. Returns how many were."""
        if nbytes >= _LARGE:
            return 0
        self._small += 1
        if self._small < FAN:
            return 0
        self._small = 0
        return self.merge()

    def merge(self) -> int:
        """Merge what is due now; returns how many segments were merged."""
        with contextlib.suppress(StoreError, OSError):
            return self._merge()
        self._catalog = None  # whatever it was, look at everything anew the next time
        return 0

    def _merge(self) -> int:
        lease = try_lease(self._folder)
        if lease is None:
            return 0
        try:
            return self._merge_all() if lease.certain else 0
        finally:
            lease.release()

    def _merge_all(self) -> int:
        if self._catalog is None:
            self._catalog = Catalog(self._folder, self._identity)
        else:
            self._catalog.refresh()
        retire(self._folder, self._catalog.replaced)
        count = 0
        while (run := next(due(self._catalog.segments), None)) is not None:
            if self._output is None:
                self._output = ReplacementWriter(self._folder, self._identity)
            self._output.merge(run, {})
            retire(self._folder, run)
            count += len(run)
            self._catalog.refresh()
        remove_retired(self._folder, self._grace)
        return count


def due_at_start(segments: list[Segment]) -> int:
    """As how many small publications count those that earlier writers left.

    A writer that is killed and started again and again never gets to merge by itself: where enough
    has come together, the next one merges as soon as it has published something.
    """
    return FAN if next(due(segments), None) is not None else 0


def due(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Neighbours of about one size, sixteen or more, the smallest first."""
    sizes = [_size(segment.nbytes) for segment in segments]
    for size in range(_size(_LARGE)):
        start = 0
        while start < len(segments):
            stop = start
            total = 0
            while stop < len(segments) and sizes[stop] <= size and total < 2 * _LARGE:
                total += segments[stop].nbytes
                stop += 1
            if stop - start >= FAN:
                yield segments[start:stop]
            start = max(stop, start + 1)


def _size(nbytes: int) -> int:
    """Which sixteenfold of the smallest size this is."""
    return max(0, (nbytes.bit_length() - _FIRST + _BITS - 1) // _BITS)
