"""Merge small segments while a writer publishes them.

A program that flushes often leaves many small segments. Sixteen neighbours of a size are merged
into one of the next size, so a store of n flushes has about 16 log16(n) segments, and every byte is
written about log16(n) times more. The merge is that of :func:`sawlog.store.compact`: neighbours in
order, of any writer, under the same lease, and equally safe against kills.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sawlog.errors import StoreError
from sawlog.store._format._layout import Folder, Identity
from sawlog.store._format._segment import Segment
from sawlog.store._maintenance._merge_segments import MOST_EMPTY_ITEMS
from sawlog.store._maintenance._replacements import (
    ReplacementWriter,
    remove_retired,
    retire,
    try_lease,
)
from sawlog.store._reading._catalog import Catalog

FAN = 16
_BITS = 4  # of a size: 2**4 == FAN
_FIRST = 14  # segments below 2**14 bytes are of the same size
_LARGE = 16 << 20  # bytes; larger segments are left to compact()


class SmallSegmentMerger:
    """Merges the small segments of a store for a writer.

    ``merge()`` is called after every ``FAN`` small publications, in a thread. It does not raise if
    merging fails: it is tried again later, and damage is reported to readers.
    """

    def __init__(self, folder: Folder, identity: Identity, grace: float = 3600.0) -> None:
        self._folder, self._identity, self._grace = folder, identity, grace
        self._catalog: Catalog | None = None
        self._output: ReplacementWriter | None = None
        self._small = 0

    def published(self, nbytes: int) -> int:
        """Count a publication; merge after ``FAN`` small ones. Return the number merged."""
        if nbytes >= _LARGE:
            return 0
        self._small += 1
        if self._small < FAN:
            return 0
        self._small = 0
        return self.merge()

    def merge(self) -> int:
        """Merge what is due; return the number of merged segments."""
        with contextlib.suppress(StoreError, OSError):
            return self._merge()
        self._catalog = None  # after any failure, read everything again
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
    """Return the number of small publications that earlier writers left, to start counting from.

    A writer that is killed and restarted again and again never merges by itself. If a merge is due
    when a writer opens, it merges after its first publication.
    """
    return FAN if next(due(segments), None) is not None else 0


def due(segments: list[Segment]) -> Iterator[list[Segment]]:
    """Yield runs of at least sixteen neighbours of about one size, the smallest size first."""
    sizes = [_size(segment.nbytes) for segment in segments]
    for size in range(_size(_LARGE)):
        start = 0
        while start < len(segments):
            stop = start
            total = empty = 0
            while stop < len(segments) and sizes[stop] <= size and total < 2 * _LARGE:
                total += segments[stop].nbytes
                empty += segments[stop].empty_items
                if empty > MOST_EMPTY_ITEMS:
                    break
                stop += 1
            if stop - start >= FAN:
                yield segments[start:stop]
            start = max(stop, start + 1)


def _size(nbytes: int) -> int:
    """Return the size class: 0 for the smallest, plus 1 for each factor of 16."""
    return max(0, (nbytes.bit_length() - _FIRST + _BITS - 1) // _BITS)
