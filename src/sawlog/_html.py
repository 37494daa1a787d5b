"""Small static tables for notebooks, in HTML. Every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from sawlog._text import printable_lines

_CELL = "padding:.15em .8em .15em 0;vertical-align:top;text-align:"
_LONG = 60  # characters; longer words are broken, so that a table stays as wide as the page
_SHORT = 24  # letters that a column of any width may break


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
        whole: the columns whose texts are not broken into lines.
        note: a line below the table.
    """
    sides = ["right" if at in right else "left" for at in range(len(columns))]
    sides = [f"{side};white-space:nowrap" if at in whole else side for at, side in enumerate(sides)]

    def line(cells: Sequence[Any], tag: str) -> str:
        parts = (
            f'<{tag} style="{_CELL}{side}{_bounds(cell)}">{_cell(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = f'<p style="margin:.2em 0;opacity:.75">{escaped(note)}</p>' if note else ""
    return (
        '<div><table style="border-collapse:collapse"><caption style="text-align:left;'
        f'white-space:nowrap;font-weight:600">{escaped(title)}</caption>'
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


def _bounds(cell: Any) -> str:
    """Keep a long text from being as wide as the page, and from becoming a narrow tower."""
    if isinstance(cell, Markup) or len(str(cell)) <= _SHORT:
        return ""
    wide = ";max-width:30em;overflow-wrap:break-word" if len(str(cell)) > _LONG else ""
    return f"{wide};min-width:14em"


def _cell(cell: Any) -> str:
    return str(cell) if isinstance(cell, Markup) else escaped(cell)
