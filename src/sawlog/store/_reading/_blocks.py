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

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple

import numpy as np

from sawlog._pool import thread_pool
from sawlog.errors import StoreError
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment

_BLOCK = 4 << 20  # bytes
_MOST_BLOCKS = 64  # that are made before they are needed
_TOGETHER = 8  # pieces


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
        length = self.stop - self.start
        for start in range(0, length, self.step):
            yield self._block(slice(start, min(start + self.step, length)), values)

    @property
    def cheap(self) -> bool:
        """Whether making the blocks of ready rows reads nothing and copies nothing."""
        if self.superseded is not None or isinstance(self.ids, StringIds):
            return False
        texts = any(self.segment.tensors[name].dtype.kind in "UV" for name in self.names)
        return not texts and self.stop - self.start <= self.step * _MOST_BLOCKS

    def _block(self, rows: slice, whole: dict[str, np.ndarray]) -> RowBlock:
        """Return some of the rows, counted from the first of these."""
        values = {name: array[rows] for name, array in whole.items()}
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
        prepared = _prepared(pieces)
        previous, current = None, next(prepared, None)
        fetched = _advance(pool, None, current)
        while current is not None:
            if fetched is not None:
                fetched.result()
            following = next(prepared, None)
            fetched = _advance(pool, previous, following)
            yield from current.blocks
            previous, current = current, following
        if previous is not None:
            previous.release()


class _Prepared(NamedTuple):
    """Rows, and what is to be called with them, looked up in advance if they are ready."""

    rows: UnreadRows
    blocks: Iterable[RowBlock]
    ready: bool
    releasing: list[Callable[[], object]]

    def release(self) -> None:
        for release in self.releasing:
            release()


def _prepared(pieces: Iterator[UnreadRows]) -> Iterator[_Prepared]:
    """Prepare the blocks of several pieces at once if they are ready.

    While the program works on a block it may fill the cache of the processor. What is done then for
    the next one takes several times as long.
    """
    waiting: list[_Prepared] = []
    for rows in pieces:
        ready = _is_ready(rows)
        if ready and rows.cheap:
            releasing = rows.segment.releasing(rows.names, rows.start, rows.stop)
            waiting.append(_Prepared(rows, list(rows.blocks()), True, releasing))
        else:
            waiting.append(_Prepared(rows, rows.blocks(), ready, [rows.release]))
        if not ready or len(waiting) == _TOGETHER:
            yield from waiting
            waiting = []
    yield from waiting


def _is_ready(rows: UnreadRows) -> bool:
    with contextlib.suppress(StoreError):  # fetching them raises it again, in its turn
        return rows.ready
    return False


def _advance(
    pool: Executor, previous: _Prepared | None, following: _Prepared | None
) -> Future | None:
    """Release rows, then fetch others: in the thread if they are to be read or checked."""

    def work() -> None:
        if previous is not None:
            previous.release()
        if following is not None and not following.ready:
            following.rows.fetch()

    if following is not None and not following.ready:
        return pool.submit(work)
    work()
    return None


def _scan_here(pieces: Iterator[UnreadRows]) -> Iterator[RowBlock]:
    for piece in pieces:
        piece.fetch()
        yield from piece.blocks()
        piece.release()
