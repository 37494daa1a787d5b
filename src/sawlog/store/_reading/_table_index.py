"""The rows of one table: find them by id, copy some, or read all in blocks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sawlog._pool import thread_pool
from sawlog.errors import SchemaError, UnknownIdError
from sawlog.store._format import _ids
from sawlog.store._format._chunks import TableChunk
from sawlog.store._format._schema import Column, Table
from sawlog.store._format._segment import Segment
from sawlog.store._reading._blocks import UnreadRows, rows_of_block, rows_within
from sawlog.store._reading._id_index import IdIndex
from sawlog.store._reading._stored_ids import ids_of, stored_ids

T = TypeVar("T")
_WORTH_THREADS = 8 << 20  # bytes


def for_each(work: Callable[[T], None], items: Iterable[T], nbytes: int) -> None:
    """Call ``work`` with every item, in threads if there are many bytes to process."""
    if nbytes < _WORTH_THREADS:
        for item in items:
            work(item)
        return
    threads = min(4, os.cpu_count() or 1)
    with thread_pool(threads, "sawlog-gather") as pool:
        for done in [pool.submit(work, item) for item in items]:
            done.result()


@dataclasses.dataclass(frozen=True)
class TableIndex:
    """The chunks of a table, and an index of their ids, from the same snapshot of the store."""

    table: Table
    chunks: list[tuple[Segment, TableChunk]]
    index: IdIndex

    @classmethod
    def of(
        cls, table: Table, chunks: list[tuple[Segment, TableChunk]], duplicates: str
    ) -> TableIndex:
        """Index the ids of these chunks.

        Raises:
            DuplicateIdError: an id occurs twice, and ``duplicates`` is ``"error"``.
        """
        ids = [stored_ids(segment, chunk) for segment, chunk in chunks]
        return cls(table, chunks, IdIndex(ids, duplicates, repr(table.names[0])))

    @property
    def keep(self) -> np.ndarray | None:
        """Which rows count, or None if all do: a later row may replace an earlier one."""
        dropped = self.index.superseded
        return None if dropped is None else ~dropped

    def ids(self) -> Any:
        """Return the ids of all rows that count: an int64 array, or a list of strings."""
        parts = [ids_of(segment, chunk) for segment, chunk in self.chunks]
        keep = self.keep
        if self.table.ids == "str":
            texts = [text for part in parts for text in part]
            return texts if keep is None else [t for t, k in zip(texts, keep, strict=True) if k]
        whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return whole if keep is None else whole[keep]

    def find(self, wanted: np.ndarray | list[str], path: Path) -> np.ndarray:
        """Return the row number of each id.

        Raises:
            SchemaError: the ids are integers and the table has strings, or the reverse.
            UnknownIdError: the table does not have some of them.
        """
        name = self.table.names[0]
        if len(wanted) and _ids.kind_of(wanted) != self.table.ids:
            raise SchemaError(
                f"{name!r} has ids of the kind {self.table.ids!r}, and these are not: "
                f"{_ids.shown_ids(wanted)}."
            )
        rows = self.index.find(wanted if len(wanted) else np.zeros(0, np.int64))
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            raise UnknownIdError(
                f"{path} has no {name!r} for {len(lost)} of {len(rows)} ids: "
                f"{_ids.shown_ids([wanted[i] for i in lost[:6]])}. Hint: reader.ids() lists the "
                "stored ids; refresh() reads what was published since."
            )
        return rows

    def take(self, columns: Mapping[str, Column], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Copy the rows with these numbers, for each of the columns."""
        out = {n: np.empty((len(rows), *c.shape), c.dtype) for n, c in columns.items()}

        def copy(part: tuple[int, np.ndarray, np.ndarray]) -> None:
            number, where, own = part
            for name, array in out.items():
                self.chunks[number][0].take_into(name, own, array, where)

        for_each(copy, self.index.split(rows), sum(array.nbytes for array in out.values()))
        return out

    def unread_rows(
        self, names: Sequence[str], budget: int, rows: int | None, part: int, parts: int
    ) -> Iterator[UnreadRows]:
        """Cut the table within a budget; ``part`` of ``parts`` selects chunks."""
        for number, (segment, chunk) in enumerate(self.chunks):
            if number * parts // len(self.chunks) != part:
                continue
            ids, first = self.index.chunks[number], int(self.index.starts[number])
            step = rows_within(segment, names, budget)
            block = min(step, rows_of_block(segment, names) if rows is None else rows)
            for start in range(0, chunk.rows, step):
                stop = min(chunk.rows, start + step)
                old = self.index.superseded
                old = None if old is None else old[first + start : first + stop]
                yield UnreadRows(segment, ids, tuple(names), start, stop, old, block)
