"""Stage the rows of one ``append``: match the table, drop or refuse known ids, fill segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sawlog.errors import DuplicateIdError, SchemaError
from sawlog.store._format import _ids
from sawlog.store._format._empty_items import MOST
from sawlog.store._format._layout import Config
from sawlog.store._format._schema import Log, Schema, Table
from sawlog.store._format._segment import RemovedSegmentError
from sawlog.store._reading._catalog import Catalog
from sawlog.store._writing._accepted import WriterCall
from sawlog.store._writing._id_set import IdSet, first_of_each
from sawlog.store._writing._nan_policy import check_nan
from sawlog.store._writing._pipeline import Pipeline
from sawlog.store._writing._validate_write import RowBatch, table_of


class RowStaging:
    """Stages rows for one writer, and remembers the ids of each table."""

    def __init__(
        self,
        catalog: Catalog,
        config: Config,
        pipeline: Pipeline,
        *,
        writer: str,
        path: Path,
        segment_bytes: int,
    ) -> None:
        self._catalog, self._config, self._pipeline = catalog, config, pipeline
        self._writer, self._path, self._segment_bytes = writer, path, segment_bytes
        # By table: the known ids, and the segments whose ids are among them.
        self._known: dict[str, tuple[IdSet, set[str]]] = {}

    def stage(self, call: WriterCall, rows: RowBatch) -> int:
        """Stage rows; return how many, without those of known ids that are skipped."""
        table = table_of(self._catalog.schema, rows)
        if not len(rows.ids):
            return 0  # an empty batch does not fix the kind of the ids
        if table is None:
            table = self._declare(rows)
        check_nan(self._config.nan, rows.values, self._path)
        known = self._known_ids(table)
        rows = self._without_known(table, rows, known)
        call.know(known, rows.ids)
        self._put(call, table, rows)
        return len(rows.ids)

    def _declare(self, rows: RowBatch) -> Table:
        def wanted(schema: Schema) -> list[Log]:
            return [] if table_of(schema, rows) else [rows.as_table(schema, self._config.fixed)]

        self._catalog.declare(wanted)
        table = table_of(self._catalog.schema, rows)
        assert table is not None
        return table

    # -- known ids --------------------------------------------------------------------------------

    def stored(self, wanted: np.ndarray | list[str], name: str | None) -> np.ndarray:
        """Return for each id whether the table of ``name`` has it.

        Counts rows that any writer has published, and those that this writer has accepted.
        """
        self._catalog.refresh()
        if not self._catalog.schema.tables and name is None:
            return np.zeros(len(wanted), bool)
        table = self._catalog.table(name)
        if not len(wanted):
            return np.zeros(0, bool)
        if _ids.kind_of(wanted) != table.ids:
            raise SchemaError(
                f"{table.names[0]!r} has ids of the kind {table.ids!r}, and these are "
                f"{_ids.shown_ids(wanted)}. Hint: pass ids of the kind that was written."
            )
        self._known_ids(table)
        self._read_new_ids(table, *self._known[table.names[0]])
        return self._known[table.names[0]][0].has(wanted)

    def _known_ids(self, table: Table) -> IdSet:
        """Return the ids of a table: published when last read, or accepted by this writer."""
        key = table.names[0]
        if key not in self._known:
            self._read_new_ids(table, IdSet(table.ids), set())
        return self._known[key][0]

    def _read_new_ids(self, table: Table, known: IdSet, read: set[str]) -> None:
        """Add the ids of segments that were not read yet, also if they are compacted meanwhile."""
        while True:
            try:
                for segment, ids in self._catalog.ids(table, without=read, writer=self._writer):
                    known.add(ids)
                    read.add(segment)
                break
            except RemovedSegmentError:
                if not self._catalog.refresh():  # raises if it was not a compaction
                    raise
        self._known[table.names[0]] = (known, read)

    def _without_known(self, table: Table, rows: RowBatch, known: IdSet) -> RowBatch:
        """Apply the ``duplicates`` policy."""
        if self._config.duplicates == "replace":
            return rows
        fresh = first_of_each(rows.ids) & ~known.has(rows.ids)
        if not fresh.all():
            if self._config.duplicates == "error":
                raise self._duplicates(table, rows.take(~fresh).ids)
            rows = rows.take(fresh)
        return rows

    def _duplicates(self, table: Table, ids: Any) -> DuplicateIdError:
        return DuplicateIdError(
            f"{len(ids)} of these ids are in {self._path} under {table.names[0]!r} already, or "
            f"twice in this call: {_ids.shown_ids(ids)}. The call was refused as a whole. Hint: "
            "writer.missing(ids) returns the ids that are not stored; "
            "create(..., duplicates='first') skips known ids, 'replace' keeps the new row."
        )

    # -- segments ---------------------------------------------------------------------------------

    def _put(self, call: WriterCall, table: Table, rows: RowBatch) -> None:
        """Copy rows into the pending segment, and seal it each time that it is full."""
        empty = sum(column.empty_items for column in table.columns)
        if empty > MOST:
            raise SchemaError(
                f"A row of {table.names[0]!r} has {empty} empty items, and may have {MOST}. The "
                "call was refused as a whole. Hint: write arrays that are not empty."
            )
        row_bytes, segment_bytes = table.row_bytes + 8 + empty, self._segment_bytes
        segment_bytes = min(segment_bytes, MOST) if empty else segment_bytes
        most, start, total = _rows_per_segment(segment_bytes // row_bytes), 0, len(rows.ids)
        full = most * row_bytes
        if call.nbytes + (total + 1) * row_bytes > full:
            self._pipeline.wait_for_room(total * row_bytes)
        while start < total:
            room = max(1, (full - call.nbytes) // row_bytes)
            part = slice(start, min(total, start + room))
            values = {name: array[part] for name, array in rows.values.items()}
            call.chunk(table).add_rows(call.key, rows.ids[part], values, most)
            call.count((part.stop - start) * row_bytes)
            start = part.stop
            if call.nbytes + row_bytes > full:
                call.seal()


def _rows_per_segment(fitting: int) -> int:
    """Round down to a multiple of 8, which matrix products of whole segments prefer."""
    return max(1, fitting if fitting < 64 else fitting // 8 * 8)
