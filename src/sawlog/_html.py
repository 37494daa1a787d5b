"""Small static tables for notebooks, in HTML. Every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from sawlog._format import shortened
from sawlog._text import printable_lines

_CELL = "padding:.15em .8em .15em 0;vertical-align:top;text-align:"
_LONG = 60  # characters; longer texts are broken into lines in all columns
_SHORT = 24  # characters; longer ones are broken anywhere, so that a table fits its page
_MOST = 400  # characters; longer texts are cut in the middle


def escaped(text: Any) -> str:
    """Return text that HTML shows as it is, with control characters made visible.

    >>> escaped("<b>"), escaped("a\\x1b")
    ('&lt;b&gt;', 'a\\\\x1b')
    """
    return html.escape(printable_lines(str(text)))


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (),
    note: str = "",
) -> str:
    """Return a table: a title, a head, rows of texts, and a note below.

    Args:
        title: the caption.
        columns: the head of each column.
        rows: the cells of each row; :class:`Markup` cells are used as they are.
        right: the columns that are aligned to the right.
        whole: the columns whose texts are not broken into lines, unless they are long.
        note: a line below the table.
    """
    kinds = [("right" if at in right else "left", at in whole) for at in range(len(columns))]

    def line(cells: Sequence[Any], tag: str) -> str:
        parts = (
            f'<{tag} style="{_CELL}{side}{_bounds(cell, is_whole)}">{_cell(cell)}</{tag}>'
            for cell, (side, is_whole) in zip(cells, kinds, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    style = "margin:.2em 0;opacity:.75;overflow-wrap:anywhere"
    below = f'<p style="{style}">{_cell(note)}</p>' if note else ""
    return (
        '<div><table style="border-collapse:collapse"><caption style="text-align:left;'
        f'font-weight:600{_bounds(title, True)}">{_cell(title)}</caption>'
        f"<thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>{below}</div>"
    )


class Markup(str):
    """HTML that was made from escaped text."""

    __slots__ = ()


def bar(share: float, colour: str) -> Markup:
    """Return a small bar whose length is a share from 0 to 1."""
    width = round(60 * min(1.0, max(0.0, share)))
    style = f"display:inline-block;height:.6em;width:{width}px;background:{colour}"
    return Markup(f'<span style="{style}"></span>')


def _bounds(cell: Any, whole: bool) -> str:
    """Keep a long text from being wider than the page, and from becoming a narrow tower."""
    if isinstance(cell, Markup) or len(str(cell)) <= (_LONG if whole else _SHORT):
        return ";white-space:nowrap" if whole else ""
    wide = ";max-width:30em" if len(str(cell)) > _LONG else ""
    return f"{wide};min-width:9em;overflow-wrap:anywhere"


def _cell(cell: Any) -> str:
    return str(cell) if isinstance(cell, Markup) else escaped(shortened(str(cell), _MOST))
