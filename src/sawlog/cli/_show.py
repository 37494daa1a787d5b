"""``sawlog show``: what is in a store, as tables for people or JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.text import Text

import sawlog.store
from sawlog.cli._commands import Show
from sawlog.cli._format import age, count, iso, number, plain, short, size
from sawlog.cli._outcome import DAMAGED, OK
from sawlog.cli._screen import Screen
from sawlog.cli._spark import Trend, spark
from sawlog.cli._state import style_of
from sawlog.cli._summary import Last, Named, Rows, Summary, summarize
from sawlog.cli._table import Cell, Column, fits, folded, labelled, table
from sawlog.cli._verify import show_problems
from sawlog.errors import ArgumentError, DamagedStoreError
from sawlog.store import Column as StoreColumn
from sawlog.store import Reader
from sawlog.store._dtypes import name_of

_MARGIN = 12
_MOST_META = 2000  # characters
_JSON_COURSE = 64  # bins
_SERIES = (
    Column("series", folds=16, style="bold"),
    Column("type", folds=16),
    Column("entries", right=True),
    Column("size", right=True),
    Column("last", right=True),
    Column("at", folds=8),
    Column("min", right=True, rank=2),
    Column("mean", right=True, rank=3),
    Column("max", right=True, rank=1),
    Column("nan", right=True, style="red"),
    Column("inf", right=True, style="red"),
    Column("trend", elastic=True, style="cyan"),
)
_TYPES, _VALUES = (0, 1, 2, 3), (0, 4, 5, 6, 7, 8, 9, 10, 11)  # two tables, if one is too wide
_ROWS = (
    Column("name", folds=16, style="bold"),
    Column("type", folds=16),
    Column("size", right=True),
    Column("last row"),
)


def run(arguments: Show, screen: Screen) -> int:
    """Carry out ``sawlog show``."""
    if arguments.limit < 0:
        raise ArgumentError(f"--limit is at least 0, not {arguments.limit}")
    limit = None if arguments.json else arguments.limit or None
    with _opened(arguments, screen) as reader:
        summary = summarize(reader, arguments.names, limit)
        if arguments.json:
            screen.print_json(_to_json(summary))
        else:
            _show(summary, screen)
        return DAMAGED if summary.problems else OK


def _opened(arguments: Show, screen: Screen) -> Reader:
    try:
        return sawlog.store.open(arguments.path)
    except DamagedStoreError:
        screen.remark(f"note: {arguments.path} is damaged; reading all of it for what is left")
        return sawlog.store.open(arguments.path, damaged="skip")


# -- for people -----------------------------------------------------------------------------------


def _show(summary: Summary, screen: Screen) -> None:
    _show_head(summary, screen)
    for rows in summary.tables:
        screen.print("", *(folded(line) for line in _table_lines(rows)))
        cells = [_table_cells(named) for named in rows.columns]
        screen.print(table(_ROWS, cells, screen.width))
    if summary.series:
        _show_series([_series_cells(named, screen.unicode) for named in summary.series], screen)
    if summary.left_out:
        more = f"and {count(summary.left_out, 'more name')}"
        screen.print("", folded(f"{more}: name some, use a pattern such as 'a*', or --limit 0"))
    if summary.problems:
        screen.print("", Text("damaged or missing:", "bold red"))
        show_problems(summary.problems, screen)


def _show_series(cells: list[list[Cell]], screen: Screen) -> None:
    everything = tuple(range(len(_SERIES)))
    whole = fits(_SERIES, cells, screen.width)
    for part in (everything,) if whole else (_TYPES, _VALUES):
        rows = [[row[i] for i in part] for row in cells]
        screen.print("", table([_SERIES[i] for i in part], rows, screen.width))


def _show_head(summary: Summary, screen: Screen) -> None:
    reader, seen = summary.reader, summary.activity
    state = "damaged" if summary.problems else seen.state
    head = Text.assemble((plain(str(summary.path)), "bold"), "  ", (state, style_of(state)))
    screen.print(folded(head))
    names = count(len(reader.schema), "name")
    config = reader.config
    policies = f"duplicates {config.duplicates}, nan {config.nan}"
    lines = {
        "holds": f"{names}, {size(reader.nbytes)} in {count(len(reader.segments), 'segment')}",
        "created": plain(reader.created).replace("T", " ").replace("+00:00", " UTC"),
        "written": age(seen.written),
        "policies": policies + (", no new names" if config.fixed else ""),
        "meta": _meta(reader.meta),
    }
    for label, value in lines.items():
        if value:
            screen.print(labelled(label, value, _MARGIN, screen.width))


def _meta(meta: dict[str, Any]) -> str:
    if not meta:
        return ""
    text = plain(json.dumps(meta, ensure_ascii=False))
    cut = f"... ({len(text):,} characters, --json has all)"
    return text if len(text) <= _MOST_META else text[:_MOST_META] + cut


def _type(column: StoreColumn) -> str:
    return plain(str(column if column.shape else column.dtype))


def _table_cells(named: Named) -> list[Cell]:
    return [
        plain(named.column.name),
        _type(named.column),
        size(named.nbytes),
        _last_cell(named),
    ]


def _table_lines(rows: Rows) -> list[str]:
    said = "table of " + count(rows.stored if rows.distinct is None else rows.distinct, "row")
    if rows.distinct is None and rows.stored:
        said += " written"
    elif rows.distinct != rows.stored:
        said += f" ({rows.stored:,} written, same ids among them)"
    ids = [short(i) for i in rows.first_ids]
    if rows.stored > len(ids):
        ids += ["...", short(rows.last_id)]
    lines = [f"{said}, ids {rows.table.ids}: {', '.join(ids)}" if ids else said]
    return [*lines, *([plain(rows.remark)] if rows.remark else [])]


def _series_cells(named: Named, unicode: bool) -> list[Cell]:
    trend = named.trend
    numbers = (trend.least, trend.mean, trend.greatest) if trend else (None, None, None)
    return [
        plain(named.column.name),
        _type(named.column),
        f"{named.count:,}",
        size(named.nbytes),
        _last_cell(named),
        _steps(named.last),
        *(number(x) for x in numbers),
        f"{trend.nans:,}" if trend and trend.nans else "",
        f"{trend.infinities:,}" if trend and trend.infinities else "",
        _drawing(trend, unicode) if trend else "",
    ]


def _drawing(trend: Trend, unicode: bool) -> Cell:
    return lambda width: spark(trend.course(width), unicode)


def _last_cell(named: Named) -> Cell:
    if named.damage is not None:
        return Text("damaged", "bold red")
    if named.last is None:
        return ""
    if named.column.shape:
        return "" if named.last.norm is None else f"norm {number(named.last.norm)}"
    return short(named.last.value)


def _steps(last: Last | None) -> str:
    if last is None:
        return ""
    said = {axis: _step(value) for axis, value in last.steps.items()}
    if list(said) == ["step"]:
        return said["step"]
    return ", ".join(f"{plain(axis)} {value}" for axis, value in said.items())


def _step(value: Any) -> str:
    if not isinstance(value, list):
        return short(value)
    shown = [short(x, 12) for x in value[:3]]
    return f"[{', '.join(shown)}{', ...' if len(value) > 3 else ''}]"


# -- for programs ---------------------------------------------------------------------------------


def _to_json(summary: Summary) -> dict[str, Any]:
    reader = summary.reader
    return {
        "path": str(summary.path),
        "id": reader.id,
        "created": reader.created,
        "written": iso(summary.activity.written),
        "state": "damaged" if summary.problems else summary.activity.state,
        "segments": len(reader.segments),
        "bytes": reader.nbytes,
        "config": dataclasses.asdict(reader.config),
        "meta": reader.meta,
        "problems": [dataclasses.asdict(problem) for problem in summary.problems],
        "tables": [_table_json(rows) for rows in summary.tables],
        "series": [_series_json(named) for named in summary.series],
    }


def _table_json(rows: Rows) -> dict[str, Any]:
    return {
        "ids": rows.table.ids,
        "rows": rows.distinct,
        "rows_written": rows.stored,
        "first_ids": rows.first_ids,
        "last_id": rows.last_id,
        "remark": rows.remark,
        "columns": [_named_json(named) for named in rows.columns],
    }


def _named_json(named: Named) -> dict[str, Any]:
    column, last = named.column, named.last
    said = {
        "name": column.name,
        "dtype": name_of(column.dtype),
        "shape": list(column.shape),
        "bytes": named.nbytes,
        "damage": named.damage,
        "last": None,
    }
    if last is not None:
        said["last"] = {"norm": last.norm} if column.shape else {"value": last.value}
    return said


def _series_json(named: Named) -> dict[str, Any]:
    said = {**_named_json(named), "entries": named.count, "steps": list(named.axes)}
    if named.last is not None:
        said["last"]["steps"] = named.last.steps
    if (trend := named.trend) is not None:
        said["min"], said["mean"], said["max"] = trend.least, trend.mean, trend.greatest
        said["nan"], said["inf"] = trend.nans, trend.infinities
        said["trend"] = trend.course(_JSON_COURSE)
    return said
