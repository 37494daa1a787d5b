"""Text from elsewhere on a terminal, and in the cells of a spreadsheet."""

from __future__ import annotations

import re

_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # as spreadsheets see it
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|Infinity)")
_JOINERS = "\u200c\u200d"  # invisible, but part of words and emoji


def printable(text: str) -> str:
    r"""Text that cannot move the cursor or change colours: what is not printable is escaped.

    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text
    )


def printable_lines(text: str) -> str:
    """As :func:`printable`, with line breaks kept."""
    return "\n".join(map(printable, text.split("\n")))


def guarded(text: str) -> str:
    """Text for a cell that no spreadsheet takes for a formula: ``'`` goes before what looks so.

    Numbers stay as they are. :func:`unguarded` is the reverse.

    >>> guarded("=1+1"), guarded("'=1"), guarded("-5"), guarded("a=b")
    ("'=1+1", "''=1", '-5', 'a=b')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    """The reverse of :func:`guarded`.

    >>> unguarded(guarded("'=1")), unguarded("'quoted'")
    ("'=1", "'quoted'")
    """
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text
