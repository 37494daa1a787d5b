"""``sawlog show``: print the summary of a store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from tyro.conf import arg

import sawlog.store
from sawlog._format import age, count, number, short, size
from sawlog._table import Cell, TableColumn, fits, folded, labelled, table
from sawlog._text import printable, printable_name
from sawlog._trend import sparkline
from sawlog._validate import integer
from sawlog.cli._arguments import Json, NamesAgain, PositionalNames, Store
from sawlog.cli._exit_codes import DAMAGED, OK
from sawlog.cli._folders import one_store
from sawlog.cli._ls import state_style
from sawlog.cli._output import CommandOutput
from sawlog.cli._verify import show_problems
from sawlog.errors import DamagedStoreError
from sawlog.inspect import (
    ColumnSummary,
    LastValue,
    SeriesSummary,
    StoreSummary,
    TableSummary,
    Trend,
    store_summary,
)
from sawlog.store import Problem, Reader

_MARGIN = 12
_MOST_META = 2000  # characters
_SERIES = (
    TableColumn("series", folds=16, style="bold"),
    TableColumn("type", folds=16),
    TableColumn("entries", right=True),
    TableColumn("size", right=True),
    TableColumn("last", right=True),
    TableColumn("at", folds=8),
    TableColumn("min", right=True, rank=2),
    TableColumn("mean", right=True, rank=3),
    TableColumn("max", right=True, rank=1),
    TableColumn("nan", right=True, style="red"),
    TableColumn("inf", right=True, style="red"),
    TableColumn("trend", elastic=True, style="cyan"),
)
_TYPES, _VALUES = (0, 1, 2, 3), (0, 4, 5, 6, 7, 8, 9, 10, 11)  # two tables if one is too wide
_ROWS = (
    TableColumn("name", folds=16, style="bold"),
    TableColumn("type", folds=16),
    TableColumn("size", right=True),
    TableColumn("last row"),
)


@dataclasses.dataclass(frozen=True)
class Show:
    """Show what a store contains: names, types, counts, last values, trends.

    A trend shows a series from its first entry to its last: each block is the mean of some entries,
    and x marks those of which none is a finite number.

    examples:
      sawlog show runs/seed-0
      sawlog show runs/seed-0 loss 'grad/*' --json
    """

    path: Store
    names: PositionalNames = ()
    more_names: NamesAgain = ()
    limit: Annotated[
        int, arg(help="Show at most this many names, 0 for all. JSON always has all.")
    ] = 200
    json: Json = False


def run(arguments: Show, output: CommandOutput) -> int:
    """Run ``sawlog show``."""
    limit = integer("--limit", arguments.limit, least=0)
    reader, damaged = _opened(one_store(arguments.path), output)
    with reader:
        most = None if arguments.json else limit or None
        summary = store_summary(reader, arguments.names + arguments.more_names, limit=most)
    if damaged and not summary.problems:  # only store.json is, which no segment depends on
        summary = dataclasses.replace(summary, problems=[Problem("store.json", damaged)])
    if arguments.json:
        output.print_json(summary.to_json())
    else:
        _show(summary, output)
    return DAMAGED if summary.problems else OK


def _opened(path: Path, output: CommandOutput) -> tuple[Reader, str]:
    """Return a reader, and what is damaged."""
    try:
        return sawlog.store.open(path), ""
    except DamagedStoreError as error:
        output.remark(f"note: {path} is damaged; reading all of it for what is left")
        return sawlog.store.open(path, damaged="skip"), error.what


def _show(summary: StoreSummary, output: CommandOutput) -> None:
    _show_head(summary, output)
    for rows in summary.tables:
        output.print("", *(folded(line) for line in _table_lines(rows)))
        cells = [_table_cells(named) for named in rows.columns]
        output.print(table(_ROWS, cells, output.width))
    if summary.series:
        _show_series([_series_cells(named, output.unicode) for named in summary.series], output)
    if summary.left_out:
        more = f"and {count(summary.left_out, 'more name')}"
        output.print("", folded(f"{more}: name some, use a pattern such as 'a*', or --limit 0"))
    if summary.problems:
        output.print("", Text("damaged or missing:", "bold red"))
        show_problems(summary.problems, output)


def _show_series(cells: list[list[Cell]], output: CommandOutput) -> None:
    everything = tuple(range(len(_SERIES)))
    whole = fits(_SERIES, cells, output.width)
    for part in (everything,) if whole else (_TYPES, _VALUES):
        rows = [[row[i] for i in part] for row in cells]
        output.print("", table([_SERIES[i] for i in part], rows, output.width))


def _show_head(summary: StoreSummary, output: CommandOutput) -> None:
    state = summary.state
    head = Text.assemble((printable(str(summary.path)), "bold"), "  ", (state, state_style(state)))
    output.print(folded(head))
    names = count(summary.names, "name")
    config = summary.config
    policies = f"duplicates {config['duplicates']}, nan {config['nan']}"
    lines = {
        "holds": f"{names}, {size(summary.nbytes)} in {count(summary.segments, 'segment')}",
        "created": printable(summary.created).replace("T", " ").replace("+00:00", " UTC"),
        "written": age(summary.activity.written),
        "error": printable(summary.activity.error or ""),
        "policies": policies + (", no new names" if config["fixed"] else ""),
        "meta": _meta(summary.meta),
    }
    for label, value in lines.items():
        if value:
            output.print(labelled(label, value, _MARGIN, output.width))


def _meta(meta: dict[str, Any]) -> str:
    if not meta:
        return ""
    text = printable(json.dumps(meta, ensure_ascii=False))
    cut = f"... ({len(text):,} characters, --json has all)"
    return text if len(text) <= _MOST_META else text[:_MOST_META] + cut


def _table_cells(named: ColumnSummary) -> list[Cell]:
    return [
        printable_name(named.name),
        printable(named.type),
        size(named.nbytes),
        _last_cell(named),
    ]


def _table_lines(rows: TableSummary) -> list[str]:
    text = "table of " + count(rows.stored if rows.distinct is None else rows.distinct, "row")
    if rows.distinct is None and rows.stored:
        text += " written"
    elif rows.distinct != rows.stored:
        text += f" ({rows.stored:,} written, with ids repeated)"
    ids = [short(i) for i in rows.first_ids]
    if rows.stored > len(ids):
        ids += ["...", short(rows.last_id)]
    lines = [f"{text}, ids {rows.ids}: {', '.join(ids)}" if ids else text]
    return [*lines, *([printable(rows.remark)] if rows.remark else [])]


def _series_cells(named: SeriesSummary, unicode: bool) -> list[Cell]:
    trend = named.trend
    numbers = (trend.least, trend.mean, trend.greatest) if trend else (None, None, None)
    return [
        printable_name(named.name),
        printable(named.type),
        f"{named.entries:,}",
        size(named.nbytes),
        _last_cell(named),
        _steps(named.last),
        *(number(x) for x in numbers),
        f"{trend.nans:,}" if trend and trend.nans else "",
        f"{trend.infinities:,}" if trend and trend.infinities else "",
        _drawing(trend, unicode) if trend else "",
    ]


def _drawing(trend: Trend, unicode: bool) -> Cell:
    return lambda width: sparkline(trend.means(width), unicode)


def _last_cell(named: ColumnSummary) -> Cell:
    if named.damage is not None:
        return Text("damaged", "bold red")
    if named.last is None:
        return ""
    if named.shape:
        return "" if named.last.norm is None else f"norm {number(named.last.norm)}"
    return short(named.last.value)


def _steps(last: LastValue | None) -> str:
    if last is None:
        return ""
    steps = {axis: _step(value) for axis, value in last.steps.items()}
    if list(steps) == ["step"]:
        return steps["step"]
    return ", ".join(f"{printable_name(axis)} {value}" for axis, value in steps.items())


def _step(value: Any) -> str:
    if not isinstance(value, list):
        return short(value)
    shown = [short(x, 12) for x in value[:3]]
    return f"[{', '.join(shown)}{', ...' if len(value) > 3 else ''}]"
