"""Select the sheets for some names: one for each table, and one or more for the entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.store._format._schema import Series, Table
from sawlog.store._views._cells import TEXT, Batch, Cells, Field, Sheet, free_name
from sawlog.store._views._long import LongSheet
from sawlog.store._views._wide import WideSheet, step_kind

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader


class TableSheet(Sheet):
    """The rows of a table: ids, then names."""

    def __init__(self, reader: Reader, table: Table, names: Sequence[str]) -> None:
        self._reader, self._names = reader, tuple(names)
        columns = tuple(reader.schema.column(name) for name in names)
        ids = Field(free_name("id", names), "id", _id_dtype(table))
        self.name, self.logs = names[0], columns
        self.fields = (ids, *(Field(c.name, "value", c.dtype, c.shape) for c in columns))
        self.rows = reader.count(names[0])
        self.nbytes = self.rows * (8 + sum(column.row_bytes for column in columns))

    def __str__(self) -> str:
        return f"rows by id: {', '.join(map(repr, self._names))}"

    def batches(self, budget: int) -> Iterator[Batch]:
        """Implement :meth:`Sheet.batches`."""
        for block in self._reader.blocks(self._names, budget=budget):
            ids = block.ids
            if isinstance(ids, list):
                ids = np.array(ids, dtype=object)
            yield [Cells(ids), *(Cells(block.values[name]) for name in self._names)]


def _id_dtype(table: Table) -> np.dtype:
    return TEXT if table.ids == "str" else np.dtype(np.int64)


def chosen_names(reader: Reader, names: str | Iterable[str] | None) -> list[str]:
    """Return the selected names without duplicates, or all.

    Raises:
        UnknownNameError: the store has no such name.
        ArgumentError: no name is selected.
    """
    if names is None:
        chosen = list(reader.schema)
    else:
        chosen = list(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in chosen:
        reader.schema[name]
    if not chosen:
        raise ArgumentError(
            f"There is nothing to export from {reader.path}: "
            + ("names is empty." if names is not None else "it has no logs yet.")
        )
    return chosen


def sheets_of(reader: Reader, names: str | Iterable[str] | None, long: bool) -> list[Sheet]:
    """Return the sheets of the selected names.

    With ``long`` all entries form one sheet. Otherwise series with the same step axes do, and
    series without steps that have the same number of entries. A declared series without entries
    joins others with its axes; if there are none, it is omitted unless selected by name.

    Raises:
        UnknownNameError, ArgumentError: a name is unknown, or the names do not fit together.
    """
    chosen = chosen_names(reader, names)
    tables: dict[Table, list[str]] = {}
    series: list[Series] = []
    for name in chosen:
        log = reader.schema[name]
        if isinstance(log, Table):
            tables.setdefault(log, []).append(name)
        else:
            series.append(log)
    out: list[Sheet] = [TableSheet(reader, table, own) for table, own in tables.items()]
    if long:
        return [*out, LongSheet(reader, series)] if series else out
    full, lonely = _groups(reader, series)
    if names is not None or not (full or out):
        full += lonely
    return [*out, *(WideSheet(reader, group) for group in full)]


def _groups(
    reader: Reader, series: Sequence[Series]
) -> tuple[list[list[Series]], list[list[Series]]]:
    """Return series by sheet, and series without entries that match none of them."""
    empty = [each for each in series if not reader.count(each.column.name)]
    groups: dict[Any, list[Series]] = {}
    for each in series:
        if each not in empty:
            rows = 0 if each.steps else reader.count(each.column.name)
            groups.setdefault((_axes(each), rows), []).append(each)
    alone: dict[Any, list[Series]] = {}
    for each in empty:
        home = next((group for key, group in groups.items() if key[0] == _axes(each)), None)
        (alone.setdefault(_axes(each), []) if home is None else home).append(each)
    full = [sorted(group, key=series.index) for group in groups.values()]
    return full, list(alone.values())


def _axes(series: Series) -> Any:
    return frozenset((step.name, step.shape, step_kind(step.dtype)) for step in series.steps)


def only_sheet(sheets: Sequence[Sheet], hint: str) -> Sheet:
    """Return the only sheet.

    Raises:
        ArgumentError: the names form several.
    """
    if len(sheets) == 1:
        return sheets[0]
    listed = "".join(f"\n  {sheet}" for sheet in sheets)
    entries = sum(isinstance(sheet, WideSheet) for sheet in sheets)
    more = "; long=True puts all entries into one table of name, steps and value" * (entries > 1)
    raise ArgumentError(
        f"These names do not make one table, because their rows differ:{listed}\n"
        f"Hint: choose some of them with names=[...]{more}{hint}."
    )
