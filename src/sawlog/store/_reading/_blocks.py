"""Scan a table in blocks that fit into a memory budget.

A block is a view of the memory map: it needs no copy, and stays valid while it is referenced. A
thread reads and checks the next rows while the program works on the current ones. The pages of the
previous rows are released, so that the memory of a scan does not grow with the store. The thread
does all of this without the GIL: opening, reading, checking, mapping and releasing pages.

Rows are read ahead many at a time, because each time costs a switch of threads and a few system
calls. They are then yielded in smaller blocks, which the program finds in the cache of the
processor when it uses them a second time. Rows that were checked before and are in memory need no
thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from sawlog._pool import thread_pool
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment

_BLOCK = 4 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows of a table: their ids, and an array ``[rows, ...]`` for each name."""

    ids: np.ndarray | list[str]
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class UnreadRows:
    """The rows of a segment that are read together, in blocks of ``step`` rows."""

    segment: Segment
    ids: np.ndarray | StringIds
    names: tuple[str, ...]
    start: int
    stop: int
    superseded: np.ndarray | None
    step: int

    def fetch(self) -> None:
        """Read the rows into memory and check them."""
        self.segment.fetch(self.names, self.start, self.stop)

    @property
    def ready(self) -> bool:
        """Whether fetching takes less than a switch of threads: checked before, and in memory."""
        return all(map(self.segment.is_checked, self.names)) and self.segment.is_in_memory(
            self.names, self.start, self.stop
        )

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows."""
        values = {name: self.segment.values(name, self.start, self.stop) for name in self.names}
        for start in range(0, self.stop - self.start, self.step):
            rows = slice(start, min(start + self.step, self.stop - self.start))
            yield self._block(rows, {name: array[rows] for name, array in values.items()})

    def _block(self, rows: slice, values: dict[str, np.ndarray]) -> RowBlock:
        """Return some of the rows, counted from the first of these."""
        of_segment = slice(self.start + rows.start, self.start + rows.stop)
        ids = self.ids.take(of_segment) if isinstance(self.ids, StringIds) else self.ids[of_segment]
        if self.superseded is None:
            return RowBlock(ids, values)
        keep = ~self.superseded[rows]
        if keep.all():
            return RowBlock(ids, values)
        kept = (
            [x for x, k in zip(ids, keep, strict=True) if k] if isinstance(ids, list) else ids[keep]
        )
        return RowBlock(kept, {name: array[keep] for name, array in values.items()})

    def release(self) -> None:
        """Release the memory."""
        self.segment.release(self.names, self.start, self.stop)


def rows_within(segment: Segment, names: Sequence[str], budget: int) -> int:
    """Return how many rows to read at a time, such that twice as many fit into the budget.

    Multiples of the checksum spans of the widest column where possible: they are fastest to check.
    """
    cuts = [segment.tensors[name].cut for name in names]
    row_bytes = sum(cut.row_bytes for cut in cuts)
    rows = max(1, budget // 2 // max(1, row_bytes))
    span = max(cuts, key=lambda cut: cut.row_bytes).span
    return rows // span * span if rows >= span else rows


def rows_of_block(segment: Segment, names: Sequence[str]) -> int:
    """Return the rows per block, unless the caller chooses: a few megabytes."""
    return max(1, _BLOCK // max(1, sum(segment.tensors[name].cut.row_bytes for name in names)))


def scan(pieces: Iterator[UnreadRows], read_ahead: bool) -> Iterator[RowBlock]:
    """Yield the blocks in order."""
    if not read_ahead:
        yield from _scan_here(pieces)
        return
    with thread_pool(1, "sawlog-read-ahead") as pool:
        previous, current = None, next(pieces, None)
        fetched = _advance(pool, None, current)
        while current is not None:
            if fetched is not None:
                fetched.result()
            following = next(pieces, None)
            fetched = _advance(pool, previous, following)
            yield from current.blocks()
            previous, current = current, following
        if previous is not None:
            previous.release()


def _advance(
    pool: Executor, previous: UnreadRows | None, following: UnreadRows | None
) -> Future | None:
    """Release rows, then fetch others: in the thread if they are to be read or checked."""

    unread = following if following is not None and not following.ready else None

    def work() -> None:
        if previous is not None:
            previous.release()
        if unread is not None:
            unread.fetch()

    if unread is not None:
        return pool.submit(work)
    work()
    return None


def _scan_here(pieces: Iterator[UnreadRows]) -> Iterator[RowBlock]:
    for piece in pieces:
        piece.fetch()
        yield from piece.blocks()
        piece.release()
