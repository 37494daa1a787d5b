"""``store_summary``: the names of a store, their types, sizes, last values and trends.

Series of numbers are read completely, in pieces. Of everything else, tables above all, only the
first ids and the last row are read, so the store may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import sawlog.store
from sawlog.errors import DamagedStoreError, DuplicateIdError
from sawlog.inspect._activity import writer_activity
from sawlog.inspect._patterns import matching_names
from sawlog.inspect._summary import (
    ColumnSummary,
    LastValue,
    SeriesSummary,
    StoreSummary,
    TableSummary,
)
from sawlog.inspect._trend import Trend, TrendBuilder
from sawlog.inspect._values import python_value
from sawlog.store import Column, Problem, Reader, Series, Table
from sawlog.store._format._chunks import (
    Chunk,
    SeriesChunk,
    TableChunk,
    ids_name,
    mask_name,
    step_name,
)
from sawlog.store._format._dtypes import is_extension, name_of
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment
from sawlog.store._reading._stored_ids import stored_ids

_PIECE = 1 << 20  # values at a time
_MOST_IDS = 10_000_000  # more are not sorted only to count them
_FIRST_IDS = 5


def store_summary(
    store: str | os.PathLike[str] | Reader,
    names: Sequence[str] = (),
    *,
    limit: int | None = None,
    damaged: str = "error",
) -> StoreSummary:
    """Summarize a store.

    Args:
        store: its folder, or an open reader.
        names: the names to read, or patterns such as ``"grad/*"``; without any, all.
        limit: how many names to read at most; None is all.
        damaged: ``"error"``, or ``"skip"`` to summarize what is left of a damaged store. A reader
            that is given has its own.

    Raises:
        UnknownNameError: no name matches one of the patterns.
        StoreNotFoundError: there is no store.
        DamagedStoreError: the store is damaged, and ``damaged`` is ``"error"``.
    """
    if not isinstance(store, Reader):
        with sawlog.store.open(store, damaged=damaged) as reader:
            return store_summary(reader, names, limit=limit)
    wanted = matching_names(store.schema, names)
    chosen = set(wanted[:limit])
    parts = _parts(store, chosen)
    tables = [
        _table(store, table, parts, chosen)
        for table in store.schema.tables
        if not chosen.isdisjoint(table.names)
    ]
    series = [
        _series(log, parts.get(log.column.name, []))
        for log in store.schema.series
        if log.column.name in chosen
    ]
    columns = [column for table in tables for column in table.columns]
    damages = [(each.name, each.damage) for each in (*columns, *series) if each.damage is not None]
    return StoreSummary(
        path=store.path,
        id=store.id,
        created=store.created,
        activity=writer_activity(store.path),
        segments=len(store.segments),
        nbytes=store.nbytes,
        names=len(store.schema),
        config=dataclasses.asdict(store.config),
        meta=store.meta,
        problems=[*store.problems, *(Problem(name, damage) for name, damage in damages)],
        tables=tables,
        series=series,
        left_out=len(wanted) - len(chosen),
    )


# -- where the values are -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _SegmentPart:
    """The rows or entries of a name in one segment."""

    segment: Segment
    rows: int
    chunk: Chunk

    @property
    def masked(self) -> bool:
        """Whether some of its entries may be masked."""
        return isinstance(self.chunk, SeriesChunk) and self.chunk.mask


def _parts(reader: Reader, names: set[str]) -> dict[str, list[_SegmentPart]]:
    """Return the parts of each name in order, in one pass over all segments."""
    found: dict[str, list[_SegmentPart]] = {}
    for segment in reader.segments:
        for chunk in segment.chunks:
            if not chunk.rows:
                continue
            for name in chunk.names:
                if name in names:
                    found.setdefault(name, []).append(_SegmentPart(segment, chunk.rows, chunk))
    return found


def _described(column: Column, parts: list[_SegmentPart]) -> dict[str, Any]:
    """Return the facts about a column that headers contain, as fields of a summary."""
    places = [part.segment.tensors[column.name] for part in parts]
    return {
        "name": column.name,
        "dtype": name_of(column.dtype),
        "shape": column.shape,
        "type": str(column if column.shape else column.dtype),
        "nbytes": sum(place.stop - place.start for place in places),
    }


# -- series ---------------------------------------------------------------------------------------


def _series(log: Series, parts: list[_SegmentPart]) -> SeriesSummary:
    entries = sum(part.rows for part in parts)
    found = SeriesSummary(**_described(log.column, parts), entries=entries, axes=log.axes)
    try:
        last = _last_entry(log, parts)
        trend = _trend(log.column, parts) if _is_number(log.column) and parts else None
    except DamagedStoreError as error:
        return dataclasses.replace(found, damage=error.what)
    return dataclasses.replace(found, last=last, trend=trend)


def _is_number(column: Column) -> bool:
    return not column.shape and _is_real(column.dtype)


def _is_real(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" or (is_extension(dtype) and "complex" not in dtype.name)


def _trend(column: Column, parts: list[_SegmentPart]) -> Trend:
    builder, at = TrendBuilder(sum(part.rows for part in parts)), 0
    for part in parts:
        for start in range(0, part.rows, _PIECE):
            stop = min(part.rows, start + _PIECE)
            values = part.segment.values(column.name, start, stop)
            mask = None
            if part.masked:
                mask = part.segment.values(mask_name(column.name), start, stop)
            builder.add(values, at + start, mask)
            part.segment.release((column.name,), start, stop)
        at += part.rows
    return builder.trend()


def _last_entry(log: Series, parts: list[_SegmentPart]) -> LastValue | None:
    name = log.column.name
    for part in reversed(parts):
        row, mask = part.rows - 1, None
        if part.masked:
            masks = part.segment.values(mask_name(name))
            logged = np.flatnonzero(masks.reshape(len(masks), -1).any(axis=1))
            if not len(logged):
                continue
            row = int(logged[-1])
            mask = masks[row]
        value = part.segment.values(name, row, row + 1)[0]
        steps = {axis: _step(part.segment, step_name(axis, name), row) for axis in log.axes}
        return dataclasses.replace(_last(value, mask), steps=steps)
    return None


def _step(segment: Segment, tensor: str, row: int) -> Any:
    value = segment.values(tensor, row, row + 1)[0]
    return [python_value(x) for x in value.reshape(-1)] if np.ndim(value) else python_value(value)


def _last(value: Any, mask: np.ndarray | None = None) -> LastValue:
    if not np.ndim(value):
        return LastValue(value=python_value(value))
    return LastValue(norm=_norm(value if mask is None or not mask.ndim else value[mask]))


def _norm(array: np.ndarray) -> float | None:
    """Return the root of the sum of squares, without overflow; None for what is not a number."""
    if not (_is_real(array.dtype) or array.dtype.kind == "c"):
        return None
    flat, total = array.reshape(-1), 0.0
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        sizes = np.abs(piece if piece.dtype.kind == "c" else piece.astype(np.float64))
        most = float(sizes.max())
        if not math.isfinite(most) or not most:
            total = math.hypot(total, most)
            continue
        total = math.hypot(total, most * math.sqrt(float(np.square(sizes / most).sum())))
    return total


# -- tables ---------------------------------------------------------------------------------------


def _table(
    reader: Reader, table: Table, parts: dict[str, list[_SegmentPart]], chosen: set[str]
) -> TableSummary:
    columns = [column for column in table.columns if column.name in chosen]
    own = parts.get(columns[0].name, [])
    found = [ColumnSummary(**_described(each, parts.get(each.name, []))) for each in columns]
    stored = sum(part.rows for part in own)
    if not own:
        return TableSummary(table.ids, 0, 0, [], None, found)
    try:
        distinct, remark = _distinct(reader, table, stored)
        first = _ids(own[0], 0, min(_FIRST_IDS, own[0].rows))
        last = _ids(own[-1], own[-1].rows - 1, own[-1].rows)[0]
    except DamagedStoreError as error:
        broken = [dataclasses.replace(each, damage=error.what) for each in found]
        return TableSummary(table.ids, stored, None, [], None, broken)
    by_id = reader.config.duplicates == "first" and distinct not in (None, stored)
    full = [_with_last(reader, each, own[-1], last if by_id else None) for each in found]
    return TableSummary(table.ids, stored, distinct, first, last, full, remark)


def _distinct(reader: Reader, table: Table, stored: int) -> tuple[int | None, str | None]:
    if stored > _MOST_IDS:
        return None, None
    try:
        return reader.count(table.names[0]), None
    except DuplicateIdError as error:
        return None, str(error).partition(" Hint:")[0]


def _ids(part: _SegmentPart, start: int, stop: int) -> list[Any]:
    assert isinstance(part.chunk, TableChunk)
    if part.chunk.ids == "int":
        return list(part.segment.values(ids_name(part.chunk.names), start, stop).tolist())
    ids = stored_ids(part.segment, part.chunk)
    assert isinstance(ids, StringIds)
    return ids.take(slice(start, stop))


def _with_last(
    reader: Reader, column: ColumnSummary, part: _SegmentPart, wanted: int | str | None
) -> ColumnSummary:
    """Add the last row; if another row of its id may take precedence, that of the id ``wanted``."""
    name, row = column.name, part.rows - 1
    try:
        if wanted is None:
            value = part.segment.values(name, row, row + 1)[0]
        else:
            value = reader.gather([wanted], [name])[name][0]
        return dataclasses.replace(column, last=_last(value))
    except DamagedStoreError as error:
        return dataclasses.replace(column, damage=error.what)
