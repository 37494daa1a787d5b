"""Scan a table in blocks that fit into a memory budget.

A block is a view of the memory map: it needs no copy, and stays valid while it is referenced. A
thread reads and checks the next block while the program works on the current one. The pages of the
previous block are released, so that the memory of a scan does not grow with the store. The thread
does all of this without the GIL: opening, reading, checking, mapping and releasing pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from sawlog._pool import thread_pool
from sawlog.store._disk import SMALL
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows of a table: their ids, and an array ``[rows, ...]`` for each name."""

    ids: np.ndarray | list[str]
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True)
class UnreadBlock:
    """The rows of one block, before they are read."""

    segment: Segment
    ids: np.ndarray | StringIds
    names: tuple[str, ...]
    start: int
    stop: int
    superseded: np.ndarray | None

    def fetch(self) -> None:
        """Read the rows into memory and check them."""
        self.segment.fetch(self.names, self.start, self.stop)

    @property
    def ready(self) -> bool:
        """Whether there is nothing to fetch: a small file that was checked is in memory."""
        return self.segment.nbytes <= SMALL and all(map(self.segment.is_checked, self.names))

    def block(self) -> RowBlock:
        """Return the rows."""
        rows = slice(self.start, self.stop)
        values = {name: self.segment.values(name, self.start, self.stop) for name in self.names}
        ids = self.ids.take(rows) if isinstance(self.ids, StringIds) else self.ids[rows]
        if self.superseded is None or not self.superseded.any():
            return RowBlock(ids, values)
        keep = ~self.superseded
        kept = (
            [x for x, k in zip(ids, keep, strict=True) if k] if isinstance(ids, list) else ids[keep]
        )
        return RowBlock(kept, {name: array[keep] for name, array in values.items()})

    def release(self) -> None:
        """Release the memory."""
        self.segment.release(self.names, self.start, self.stop)


def rows_within(segment: Segment, names: Sequence[str], budget: int) -> int:
    """Return the rows per block, such that two blocks fit into the budget.

    Multiples of the checksum spans of the widest column where possible: they are fastest to check.
    """
    cuts = [segment.tensors[name].cut for name in names]
    row_bytes = sum(cut.row_bytes for cut in cuts)
    rows = max(1, budget // 2 // max(1, row_bytes))
    span = max(cuts, key=lambda cut: cut.row_bytes).span
    return rows // span * span if rows >= span else rows


def scan(pieces: Iterator[UnreadBlock], read_ahead: bool) -> Iterator[RowBlock]:
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
            yield current.block()
            previous, current = current, following
        if previous is not None:
            previous.release()


def _advance(
    pool: Executor, previous: UnreadBlock | None, following: UnreadBlock | None
) -> Future | None:
    """Release a block, then fetch another one: in the thread if there is something to fetch."""

    def work() -> None:
        if previous is not None:
            previous.release()
        if following is not None:
            following.fetch()

    if following is not None and not following.ready:
        return pool.submit(work)
    if previous is not None:
        previous.release()
    return None


def _scan_here(pieces: Iterator[UnreadBlock]) -> Iterator[RowBlock]:
    for piece in pieces:
        piece.fetch()
        yield piece.block()
        piece.release()
