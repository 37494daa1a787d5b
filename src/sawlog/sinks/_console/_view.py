"""A snapshot as text: a table for a screen of any size, or one line.

Lines are built cell by cell, because the height is limited, too. What does not fit is dropped in
this order: the columns of the highest rank, the middle of long names, then whole rows, which a last
line counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text

from sawlog import _format
from sawlog._table import highest_rank
from sawlog._text import printable
from sawlog._trend import sparkline
from sawlog.sinks._console._dashboard_state import Row, Snapshot
from sawlog.sinks._console._runs import RunStatus

_GAP = "  "
_TREND = (8, 40)  # least and greatest width
_NAME = 8  # least width of names
_ROOMY = 80  # width from which columns keep their places
_NAMED = 3  # failed runs that are named
_IN_LINE = 12  # names

Take = Callable[[int, int], Snapshot]

_STYLES = {
    RunStatus.RUNNING: "green",
    RunStatus.FINISHED: "cyan",
    RunStatus.FAILED: "bold red",
    RunStatus.LEFT: "yellow",
}


@dataclasses.dataclass(frozen=True)
class _ViewColumn:
    """A column; columns of the highest rank are dropped first, those of rank 0 never."""

    title: str
    cells: list[Text]
    rank: int = 0
    right: bool = True
    least: int = 0

    @property
    def width(self) -> int:
        return max(self.least, cell_len(self.title), *(cell.cell_len for cell in self.cells))


def table(take: Take, title: str, width: int, height: int, unicode: bool = True) -> list[Text]:
    """Return the dashboard as at most ``height`` lines of at most ``width`` cells.

    ``take(most, points)`` returns a snapshot with at most ``most`` names.
    """
    width = max(1, width)
    head = _head(take(0, 1), title, width)
    room = height - len(head) - 1  # one line is for the headings
    snapshot = take(max(0, room), _TREND[1])
    if snapshot.hidden:
        snapshot = take(max(0, room - 1), _TREND[1])
    lines = head + (_body(snapshot, width, unicode) if snapshot.rows else [])
    if snapshot.hidden:
        more = f"… {_format.count(snapshot.hidden, 'more name')} not shown"
        lines.append(Text(more, style="dim"))
    if not unicode:
        lines = [_plain(line) for line in lines]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
        line.truncate(width)
    return lines[: max(1, height)]


# -- above the table ------------------------------------------------------------------------------


def _head(snapshot: Snapshot, title: str, width: int) -> list[Text]:
    heading = Text.assemble(("── ", "dim"), (printable(title), "bold"))
    lines = _wrapped([heading, _runs(snapshot)], width)
    if (left := width - lines[0].cell_len - 1) > 0:
        lines[0] = Text.assemble(lines[0], (" " + "─" * left, "dim"))
    lines += _wrapped(_fields(snapshot), width)
    if snapshot.share is not None:
        _add_bar(lines, snapshot.share, width)
    return lines


def _wrapped(fields: Sequence[Text], width: int) -> list[Text]:
    """Return fields side by side, on as many lines as they need."""
    lines = [fields[0]]
    for field in fields[1:]:
        if lines[-1].cell_len + len(_GAP) + field.cell_len > width:
            lines.append(field)
        else:
            lines[-1] = Text.assemble(lines[-1], _GAP, field)
    return lines


def _add_bar(lines: list[Text], share: float, width: int) -> None:
    """Draw the bar at the end of the last line, or on a line of its own if there is no room."""
    percent = Text(f"{int(100 * share)}%".rjust(4), style="bold")
    left = width - lines[-1].cell_len - 2 * len(_GAP) - 4
    if left >= 10:
        bar = _bar(share, min(left, 40))
        lines[-1] = Text.assemble(lines[-1], _GAP, bar, " ", percent)
    else:
        lines.append(Text.assemble(_bar(share, max(1, min(width - 5, 40))), " ", percent))


def _bar(share: float, width: int) -> Text:
    full = int(share * width)
    half = "╸" if 2 * share * width - 2 * full >= 1 else ""
    rest = "─" * (width - full - len(half))
    return Text.assemble(("━" * full + half, "green"), (rest, "dim"))


def _runs(snapshot: Snapshot) -> Text:
    """Return the number of runs by status, or the name of a single run."""
    present = {status: names for status, names in snapshot.runs.items() if names}
    total = sum(map(len, present.values()))
    what = _format.count(total, "run")
    if total == 1:
        what = printable(next(iter(present.values()))[0])
    line = Text(f"{what}: " if len(present) > 1 else f"{what} ")
    for number, (status, names) in enumerate(present.items()):
        count = f"{len(names):,} " if len(present) > 1 else ""
        line.append(", " if number else "").append(f"{count}{status.value}", _STYLES[status])
        if status is RunStatus.FAILED and total > 1:
            line.append(f" ({_listed(names)})", _STYLES[status])
    return line


def _listed(names: Sequence[str]) -> str:
    more = f", +{len(names) - _NAMED}" if len(names) > _NAMED else ""
    return printable(", ".join(names[:_NAMED])) + more


def _fields(snapshot: Snapshot) -> list[Text]:
    what = "step" if snapshot.counted else "entry"
    fields = []
    if snapshot.steps is not None:
        total = "" if snapshot.total is None else f" / {snapshot.total:,}"
        fields.append(Text.assemble((f"{what} ", "dim"), _between(snapshot.steps), (total, "dim")))
    if snapshot.rate is not None:
        unit = "steps/s" if snapshot.counted else "entries/s"
        each = " each" if len(snapshot.runs[RunStatus.RUNNING]) > 1 else ""
        fields.append(Text.assemble(_format.rate(snapshot.rate), (f" {unit}{each}", "dim")))
    fields.append(Text.assemble(("elapsed ", "dim"), _format.duration(snapshot.elapsed)))
    if snapshot.remaining is not None:
        left = _format.duration(math.ceil(snapshot.remaining))
        fields.append(Text.assemble(("remaining ", "dim"), left))
    return fields


def _between(steps: tuple[int | float, int | float]) -> str:
    low, high = map(_format.step, steps)
    return low if low == high else f"{low} .. {high}"


# -- the table ------------------------------------------------------------------------------------


def _body(snapshot: Snapshot, width: int, unicode: bool) -> list[Text]:
    columns = [column for column in _columns(snapshot, width >= _ROOMY) if any(column.cells)]
    least = sum(column.width for column in columns[1:]) + len(_GAP) * (len(columns) - 1)
    while least + min(_NAME, columns[0].width) > width:
        dropped = highest_rank({i: column.rank for i, column in enumerate(columns)})
        if dropped is None:
            break
        del columns[dropped]
        least = sum(column.width for column in columns[1:]) + len(_GAP) * (len(columns) - 1)
    columns[0] = _named(columns[0], max(1, width - least))
    left = width - least - columns[0].width - len(_GAP)
    trends = [row.trend for row in snapshot.rows]
    if left >= _TREND[0] and any(trends):
        columns.append(_trends(trends, min(left, _TREND[1]), unicode))
    return [
        Text(_GAP).join(_padded(Text(column.title, style="dim"), column) for column in columns),
        *(
            Text(_GAP).join(_padded(column.cells[i], column) for column in columns)
            for i in range(len(snapshot.rows))
        ),
    ]


def _named(column: _ViewColumn, most: int) -> _ViewColumn:
    if column.width <= most:
        return column
    cells = [Text(_format.shortened(str(cell), most), style="bold") for cell in column.cells]
    return dataclasses.replace(column, title=column.title[:most], cells=cells)


def _padded(cell: Text, column: _ViewColumn) -> Text:
    blank = " " * max(0, column.width - cell.cell_len)
    return Text.assemble(blank, cell) if column.right else Text.assemble(cell, blank)


def _trends(trends: Sequence[list[float | None]], width: int, unicode: bool) -> _ViewColumn:
    cells = []
    for trend in trends:
        drawn = Text(sparkline(_resampled(trend, width), unicode), style="blue")
        drawn.highlight_regex("x+", "bold red")
        cells.append(drawn)
    return _ViewColumn("trend", cells, right=False)


def _resampled(trend: list[float | None], width: int) -> list[float | None]:
    """Return at most ``width`` means of consecutive points."""
    if len(trend) <= width:
        return trend
    edges = [i * len(trend) // width for i in range(width + 1)]
    return [_middle(trend[start:stop]) for start, stop in itertools.pairwise(edges)]


def _middle(points: list[float | None]) -> float | None:
    finite = [point for point in points if point is not None and math.isfinite(point)]
    if finite:
        return math.fsum(point / len(finite) for point in finite)
    return None if all(point is None for point in points) else math.nan


def _columns(snapshot: Snapshot, roomy: bool) -> list[_ViewColumn]:
    """Return all columns; on a wide screen, in widths that stay the same between drawings."""
    rows, many = snapshot.rows, snapshot.many
    value, std, between = (10, 9, 20) if roomy else (0, 0, 0)
    total = sum(map(len, snapshot.runs.values()))
    runs = [Text(f"{row.runs}/{total}" if row.runs < total else "", "yellow") for row in rows]
    return [
        _ViewColumn("name", [Text(printable(r.name), "bold") for r in rows], right=False),
        _ViewColumn("mean" if many else "last", [_value(row) for row in rows], least=value),
        _ViewColumn("± std", [_spread(row) for row in rows], 1, right=False, least=std),
        _ViewColumn("min .. max", [_range(row) for row in rows], 4, right=False, least=between),
        _ViewColumn("shape", [_shape(row) for row in rows], rank=3, right=False),
        _ViewColumn("step", [_steps(row) for row in rows], rank=2),
        _ViewColumn("runs", runs, rank=5),
    ]


def _value(row: Row) -> Text:
    if row.text is not None:
        return Text(_format.shortened(printable(row.text), 24))
    odd = [kind if n == row.runs else f"{n:,} {kind}" for kind, n in row.odd.items()]
    text = Text(", ".join(odd), style="bold white on red")
    if row.mean is None:
        return text
    return Text.assemble(text, " " if odd else "", _format.steady_number(row.mean))


def _spread(row: Row) -> Text:
    return Text("" if row.std is None else f"± {_format.spread(row.std)}")


def _range(row: Row) -> Text:
    if row.std is None or row.least is None or row.greatest is None or row.least == row.greatest:
        return Text()
    return Text(
        f"{_format.steady_number(row.least)} .. {_format.steady_number(row.greatest)}", style="dim"
    )


def _shape(row: Row) -> Text:
    return Text("" if row.shape is None else _format.shape(row.shape), style="dim")


def _steps(row: Row) -> Text:
    return Text("" if row.steps is None else _format.step(row.steps[1]), style="dim")


def _plain(line: Text) -> Text:
    """Return a line in ASCII, without colours: replacements change the positions of these."""
    return Text(_format.ascii_only(line.plain))


# -- one line -------------------------------------------------------------------------------------


def line(take: Take, title: str, unicode: bool = True) -> str:
    """Return progress and last values in one line.

    ``take(most, points)`` returns a snapshot with at most ``most`` names.
    """
    snapshot = take(_IN_LINE, 1)
    parts = [printable(title), str(_runs(snapshot))]
    parts += [str(field) for field in _fields(snapshot)]
    if snapshot.share is not None:
        parts.append(f"{int(100 * snapshot.share)}%")
    parts += [_assigned(row) for row in snapshot.rows]
    if snapshot.hidden:
        parts.append(f"(+{_format.count(snapshot.hidden, 'more name')})")
    text = _GAP.join(parts)
    return text if unicode else _format.ascii_only(text)


def _assigned(row: Row) -> str:
    shape = "" if row.shape is None else _format.shape(row.shape)
    std = "" if row.std is None or row.mean is None else f"±{_format.spread(row.std)}"
    return f"{printable(row.name)}{shape}={_value(row)}{std}"
