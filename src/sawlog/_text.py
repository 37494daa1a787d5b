"""Untrusted text, made safe for terminals and for the cells of spreadsheets."""

from __future__ import annotations

import re

_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # what spreadsheets evaluate
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|Infinity)", re.ASCII)
_JOINERS = "\u200c\u200d"  # invisible, but part of words and emoji


def printable(text: str) -> str:
    r"""Escape what is not printable, so that text cannot move the cursor or change colours.

    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text
    )


def printable_name(name: object) -> str:
    """Return a name or an id as it is printed; in quotes if it is empty or has blanks at an end.

    >>> printable_name("loss"), printable_name(" "), printable_name("")
    ('loss', '" "', '""')
    """
    text = printable(str(name))
    return text if text and text == text.strip() else f'"{text}"'


def printable_lines(text: str) -> str:
    """Escape what is not printable, except line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def guarded(text: str) -> str:
    """Prefix text with ``'`` if a spreadsheet would evaluate it as a formula.

    Numbers are not changed. :func:`unguarded` is the inverse.

    >>> guarded("=1+1"), guarded("'=1"), guarded("-5"), guarded("a=b")
    ("'=1+1", "''=1", '-5', 'a=b')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    """Undo :func:`guarded`.

    >>> unguarded(guarded("'=1")), unguarded("'quoted'")
    ("'=1", "'quoted'")
    """
    return text[1:] if text[:1] == "'" and _FORMULA.match(text) else text
