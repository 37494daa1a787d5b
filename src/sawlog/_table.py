"""Tables that fit a screen: columns fold, then are dropped by rank; at last, rows become lists.

This module needs rich, so only the command line and the console import it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Cell = str | Text | Callable[[int], str]
_GAP = 2
_ELASTIC = (8, 40)


@dataclasses.dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Args:
        title: its heading.
        right: whether cells are aligned to the right.
        folds: the width down to which its cells may fold onto several lines; 0 if they may not.
        rank: columns of the highest rank are dropped first if the table is too wide; 0 never is.
        elastic: whether cells are functions that draw themselves in the width that is left.
        style: the style of its cells.
    """

    title: str
    right: bool = False
    folds: int = 0
    rank: int = 0
    elastic: bool = False
    style: str = ""


def fits(columns: Sequence[TableColumn], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    """Return whether all columns fit a screen of ``width``."""
    return _least(columns, _widths(columns, rows)) <= width


def table(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[Cell]], width: int
) -> RenderableType:
    """Return rows of cells as a table for a screen of ``width``, without its empty columns."""
    widths = _widths(columns, rows)
    chosen = list(widths)
    while _least(columns, widths) > width:
        dropped = highest_rank({i: columns[i].rank for i in widths})
        if dropped is None:
            return _stacked([columns[i] for i in chosen], _cut(rows, chosen), width)
        del widths[dropped]
    left = width - sum(widths.values()) - _GAP * (len(widths) - 1)
    elastic = min(max(left + _ELASTIC[0], _ELASTIC[0]), _ELASTIC[1])
    shown = [(columns[i], natural) for i, natural in widths.items()]
    return _rich_table(shown, _cut(rows, list(widths)), elastic)


def highest_rank(ranks: Mapping[int, int]) -> int | None:
    """Return the number of the column to drop first, by rank; None if none may be dropped.

    >>> highest_rank({0: 0, 1: 2, 2: 1}), highest_rank({0: 0})
    (1, None)
    """
    rank, number = max(((rank, number) for number, rank in ranks.items()), default=(0, 0))
    return number if rank else None


def _widths(columns: Sequence[TableColumn], rows: Sequence[Sequence[Cell]]) -> dict[int, int]:
    """Return the natural width of each column that is not empty."""
    chosen = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    return {i: _natural(columns[i], [row[i] for row in rows]) for i in chosen}


def _cut(rows: Sequence[Sequence[Cell]], chosen: Sequence[int]) -> list[list[Cell]]:
    return [[row[i] for i in chosen] for row in rows]


def _natural(column: TableColumn, cells: Sequence[Cell]) -> int:
    if column.elastic:
        return _ELASTIC[0]
    return max(cell_len(column.title), *(cell_len(str(cell)) for cell in cells))


def _least(columns: Sequence[TableColumn], widths: dict[int, int]) -> int:
    """Return the least width of the table."""
    each = (min(w, columns[i].folds or w) for i, w in widths.items())
    return sum(each) + _GAP * (len(widths) - 1)


def _drawn(cell: Cell, width: int, style: str = "") -> Text:
    if isinstance(cell, Text):
        return cell
    text = cell if isinstance(cell, str) else cell(min(width, _ELASTIC[1]))
    return Text(text, style=style)


def _rich_table(
    columns: Sequence[tuple[TableColumn, int]], rows: list[list[Cell]], elastic: int
) -> Table:
    out = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for column, natural in columns:
        out.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=column.folds == 0,
            min_width=min(natural, column.folds) or None,
            overflow="fold",
        )
    for row in rows:
        cells = zip(columns, row, strict=True)
        out.add_row(*(_drawn(cell, elastic, column.style) for (column, _), cell in cells))
    return out


def _stacked(columns: Sequence[TableColumn], rows: list[list[Cell]], width: int) -> Group:
    """Return each row as a heading and a list."""
    parts: list[RenderableType] = []
    margin = 4 + max((cell_len(column.title) for column in columns[1:]), default=0)
    for first, *others in rows:
        parts.append(folded(_drawn(first, width, columns[0].style or "bold")))
        for column, cell in zip(columns[1:], others, strict=True):
            if cell != "":
                parts.append(labelled(column.title, cell, margin, width, column.style))
    return Group(*parts)


def folded(text: str | Text) -> Text:
    """Return text that continues on the next line instead of being cut off."""
    text = Text(text) if isinstance(text, str) else text
    text.overflow = "fold"
    return text


def labelled(label: str, value: Cell, margin: int, width: int, style: str = "") -> RenderableType:
    """Return a line of a list: a label, and from column ``margin`` on a value that folds."""
    if width < 2 * margin:
        room = max(1, width - cell_len(label) - 1)
        return folded(Text.assemble((f"{label} ", "dim"), _drawn(value, room, style)))
    line = Table.grid(padding=0)
    line.add_column(width=margin, no_wrap=True, overflow="crop", style="dim")
    line.add_column(overflow="fold")
    line.add_row(Text(f"  {label}"), _drawn(value, width - margin, style))
    return line
