"""Text from elsewhere on a terminal."""

from __future__ import annotations

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
