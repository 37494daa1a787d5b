"""Summaries of stores, tables and series, as plain data; ``_summarize`` makes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sawlog._format import iso
from sawlog.inspect._activity import WriterActivity
from sawlog.inspect._trend import Trend
from sawlog.store import Problem


@dataclasses.dataclass(frozen=True)
class LastValue:
    """The last row or entry of a name: a scalar ``value``, or the ``norm`` of an array.

    ``steps`` has the step of an entry for each step axis.
    """

    value: Any = None
    norm: float | None = None
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """A column of a table.

    Args:
        name: its name.
        dtype: its dtype, as the schema of the store has it.
        shape: the shape of each row.
        type: dtype and shape as text, such as ``"float32[128]"``.
        nbytes: the size of its values on disk.
        last: the last row; None if the table is empty or the row is damaged.
        damage: what is damaged, as far as it was read; None if nothing is.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    type: str
    nbytes: int
    last: LastValue | None = None
    damage: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        last = None
        if self.last is not None:
            last = {"norm": self.last.norm} if self.shape else {"value": self.last.value}
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.nbytes,
            "damage": self.damage,
            "last": last,
        }


@dataclasses.dataclass(frozen=True)
class SeriesSummary(ColumnSummary):
    """A series: as a column, with its entries, its step axes, and the trend of a number."""

    entries: int = 0
    axes: tuple[str, ...] = ()
    trend: Trend | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        fields = {**super().to_json(), "entries": self.entries, "steps": list(self.axes)}
        if self.last is not None:
            fields["last"]["steps"] = self.last.steps
        return fields if self.trend is None else fields | self.trend.to_json()


@dataclasses.dataclass(frozen=True)
class TableSummary:
    """A table of a store.

    Args:
        ids: the kind of its ids, ``"int"`` or ``"str"``.
        stored: how many rows were written.
        distinct: how many ids they have; None if these were not compared.
        first_ids: a few ids from its beginning.
        last_id: the id of its last row.
        columns: its columns.
        remark: why ids were not compared.
    """

    ids: str
    stored: int
    distinct: int | None
    first_ids: list[int] | list[str]
    last_id: int | str | None
    columns: list[ColumnSummary]
    remark: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        return {
            "ids": self.ids,
            "rows": self.distinct,
            "rows_written": self.stored,
            "first_ids": self.first_ids,
            "last_id": self.last_id,
            "remark": self.remark,
            "columns": [column.to_json() for column in self.columns],
        }


@dataclasses.dataclass(frozen=True)
class StoreSummary:
    """A store.

    Args:
        path: its folder.
        id: its id.
        created: when it was created, in ISO 8601.
        activity: what its writers did last.
        segments: how many segments it has.
        nbytes: their size in bytes.
        names: how many names it has.
        config: its policies: ``duplicates``, ``nan``, ``fixed``.
        meta: the notes that it was created with.
        problems: what is damaged or missing, as far as it was read.
        tables: its tables, with the names that were selected.
        series: its series, with the names that were selected.
        left_out: how many names were selected beyond the limit.
    """

    path: Path
    id: str
    created: str
    activity: WriterActivity
    segments: int
    nbytes: int
    names: int
    config: dict[str, Any]
    meta: dict[str, Any]
    problems: list[Problem]
    tables: list[TableSummary]
    series: list[SeriesSummary]
    left_out: int = 0

    @property
    def state(self) -> str:
        """``"damaged"``, or the state of its writers."""
        return "damaged" if self.problems else self.activity.state

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON; numbers that are not finite stay floats."""
        return {
            "path": str(self.path),
            "id": self.id,
            "created": self.created,
            "written": iso(self.activity.written),
            "error": self.activity.error,
            "state": self.state,
            "segments": self.segments,
            "bytes": self.nbytes,
            "config": self.config,
            "meta": self.meta,
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "tables": [table.to_json() for table in self.tables],
            "series": [series.to_json() for series in self.series],
        }
