"""What ``sawlog show`` knows about a store.

Series of numbers are read from end to end, piece by piece. Of everything else, tables above all,
only the first ids and the last row are read, so that the store may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog.cli._chosen import matching
from sawlog.cli._format import item
from sawlog.cli._spark import Trend
from sawlog.cli._state import Activity, activity
from sawlog.errors import DamagedStoreError, DuplicateIdError
from sawlog.store import Column, Problem, Reader, Series, Table
from sawlog.store._chunks import Chunk, SeriesChunk, TableChunk
from sawlog.store._dtypes import is_extension
from sawlog.store._ids import Texts
from sawlog.store._segment import Segment, ids_name, mask_name, step_name
from sawlog.store._stored_ids import stored_ids

_PIECE = 1 << 20  # values at a time
_MOST_IDS = 10_000_000  # more are not sorted only to count them
_FIRST_IDS = 5


@dataclasses.dataclass(frozen=True)
class Last:
    """The last row or entry of a name: a scalar ``value``, or the ``norm`` of an array."""

    value: Any = None
    norm: float | None = None
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Named:
    """A name: its type, how much there is, and what could be read of it."""

    column: Column
    count: int
    nbytes: int
    axes: tuple[str, ...] = ()
    last: Last | None = None
    trend: Trend | None = None
    damage: str | None = None


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table. ``distinct`` is the number of its ids, None where they are too many to compare."""

    table: Table
    stored: int
    distinct: int | None
    first_ids: list[int] | list[str]
    last_id: int | str | None
    columns: list[Named]
    remark: str | None = None


@dataclasses.dataclass(frozen=True)
class Summary:
    """A store."""

    path: Path
    reader: Reader
    activity: Activity
    tables: list[Rows]
    series: list[Named]
    left_out: int

    @property
    def problems(self) -> list[Problem]:
        """What is damaged, as far as it was read."""
        columns = [named for rows in self.tables for named in rows.columns]
        met = [n for n in (*columns, *self.series) if n.damage is not None]
        return [*self.reader.problems, *(Problem(n.column.name, n.damage or "") for n in met)]


def summarize(reader: Reader, patterns: Sequence[str] = (), limit: int | None = None) -> Summary:
    """Read what there is to show of the names that are asked for, at most ``limit`` of them.

    Raises:
        UnknownNameError: nothing has the name, or matches the pattern.
    """
    wanted = matching(reader.schema, patterns)
    chosen = set(wanted[:limit])
    parts = _parts(reader, chosen)
    tables = [
        _rows(reader, table, parts, chosen)
        for table in reader.schema.tables
        if not chosen.isdisjoint(table.names)
    ]
    series = [
        _entries(log, parts.get(log.column.name, []))
        for log in reader.schema.series
        if log.column.name in chosen
    ]
    left_out = len(wanted) - len(chosen)
    return Summary(reader.path, reader, activity(reader.path), tables, series, left_out)


# -- where the values are -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows or entries of a name in one segment."""

    segment: Segment
    rows: int
    chunk: Chunk

    @property
    def masked(self) -> bool:
        """Whether some of its entries may not have been logged."""
        return isinstance(self.chunk, SeriesChunk) and self.chunk.mask


def _parts(reader: Reader, names: set[str]) -> dict[str, list[Part]]:
    """For each name its parts in order; one pass over all segments."""
    found: dict[str, list[Part]] = {}
    for segment in reader.segments:
        for chunk in segment.chunks:
            if not chunk.rows:
                continue
            for name in chunk.names:
                if name in names:
                    found.setdefault(name, []).append(Part(segment, chunk.rows, chunk))
    return found


def _named(column: Column, parts: list[Part]) -> Named:
    places = [part.segment.tensors[column.name] for part in parts]
    nbytes = sum(place.stop - place.start for place in places)
    return Named(column, sum(part.rows for part in parts), nbytes)


# -- series ---------------------------------------------------------------------------------------


def _entries(log: Series, parts: list[Part]) -> Named:
    named = dataclasses.replace(_named(log.column, parts), axes=log.axes)
    try:
        last = _last_entry(log, parts)
        trend = _trend(log.column, parts) if _is_number(log.column) and parts else None
    except DamagedStoreError as error:
        return dataclasses.replace(named, damage=error.what)
    return dataclasses.replace(named, last=last, trend=trend)


def _is_number(column: Column) -> bool:
    return not column.shape and _is_real(column.dtype)


def _is_real(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" or (is_extension(dtype) and "complex" not in dtype.name)


def _trend(column: Column, parts: list[Part]) -> Trend:
    trend, at = Trend(sum(part.rows for part in parts)), 0
    for part in parts:
        for start in range(0, part.rows, _PIECE):
            stop = min(part.rows, start + _PIECE)
            values = part.segment.values(column.name, start, stop)
            mask = None
            if part.masked:
                mask = part.segment.values(mask_name(column.name), start, stop)
            trend.add(values, at + start, mask)
            part.segment.release((column.name,), start, stop)
        at += part.rows
    return trend


def _last_entry(log: Series, parts: list[Part]) -> Last | None:
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
    return [item(x) for x in value.reshape(-1)] if np.ndim(value) else item(value)


def _last(value: Any, mask: np.ndarray | None = None) -> Last:
    if not np.ndim(value):
        return Last(value=item(value))
    return Last(norm=_norm(value if mask is None or not mask.ndim else value[mask]))


def _norm(array: np.ndarray) -> float | None:
    """The root of the sum of squares; None for what has none."""
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


def _rows(reader: Reader, table: Table, parts: dict[str, list[Part]], chosen: set[str]) -> Rows:
    columns = [column for column in table.columns if column.name in chosen]
    own = parts.get(columns[0].name, [])
    named = [_named(column, parts.get(column.name, [])) for column in columns]
    stored = sum(part.rows for part in own)
    if not own:
        return Rows(table, 0, 0, [], None, named)
    try:
        distinct, remark = _distinct(reader, table, stored)
        first = _ids(own[0], 0, min(_FIRST_IDS, own[0].rows))
        last = _ids(own[-1], own[-1].rows - 1, own[-1].rows)[0]
    except DamagedStoreError as error:
        broken = [dataclasses.replace(n, damage=error.what) for n in named]
        return Rows(table, stored, None, [], None, broken)
    by_id = reader.config.duplicates == "first" and distinct not in (None, stored)
    full = [_with_last(reader, n, own[-1], last if by_id else None) for n in named]
    return Rows(table, stored, distinct, first, last, full, remark)


def _distinct(reader: Reader, table: Table, stored: int) -> tuple[int | None, str | None]:
    if stored > _MOST_IDS:
        return None, None
    try:
        return reader.count(table.names[0]), None
    except DuplicateIdError as error:
        return None, str(error).partition(" Hint:")[0]


def _ids(part: Part, start: int, stop: int) -> list[Any]:
    assert isinstance(part.chunk, TableChunk)
    if part.chunk.ids == "int":
        return list(part.segment.values(ids_name(part.chunk.names), start, stop).tolist())
    ids = stored_ids(part.segment, part.chunk)
    assert isinstance(ids, Texts)
    return ids.take(slice(start, stop))


def _with_last(reader: Reader, named: Named, part: Part, wanted: int | str | None) -> Named:
    """With the last row, or where the row written last may not count, with that of its id."""
    name, row = named.column.name, part.rows - 1
    try:
        if wanted is None:
            value = part.segment.values(name, row, row + 1)[0]
        else:
            value = reader.gather([wanted], [name])[name][0]
        return dataclasses.replace(named, last=_last(value))
    except DamagedStoreError as error:
        return dataclasses.replace(named, damage=error.what)
