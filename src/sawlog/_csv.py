r"""CSV cells and lines, as RFC 4180 has them, with ``\n`` between lines.

``csv.writer`` decides about quotes by itself: an empty text would look like a missing value, and a
space at the end of a text would be lost by readers that strip fields. So cells are quoted here, and
``csv.reader`` reads them back.

>>> line([cell("a,b"), cell(""), cell("=1+1"), "", "0.5"])
'"a,b","",\'=1+1,,0.5\n'
>>> list(read_rows(io.StringIO(line([cell("a,b"), "0.5"]))))
[['a,b', '0.5']]
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator

from sawlog._text import guarded

Error = csv.Error

_MOST = 1 << 30  # characters of a cell; texts can be longer than csv's default
_SPECIAL = re.compile('[",\r\n]|^\\s|\\s$|^$')


def quoted(text: str) -> str:
    """Quote a text if it is empty, or has a comma, a quote, a line break or an outer space."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def cell(text: str) -> str:
    """Return a text as a cell that no spreadsheet evaluates as a formula."""
    return quoted(guarded(text))


def line(cells: Iterable[str]) -> str:
    """Join cells to a line. An empty string is a missing value."""
    return ",".join(cells) + "\n"


def read_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Read rows from an open file or other iterable of lines; open files with ``newline=""``."""
    return csv.reader(lines)


def read_table(lines: Iterable[str], delimiter: str = ",") -> csv.DictReader[str]:
    """Read rows as dicts by the names of the header; their cells may be long texts.

    >>> list(read_table(["a,b\\n", "1,2\\n"]))
    [{'a': '1', 'b': '2'}]
    """
    csv.field_size_limit(max(_MOST, csv.field_size_limit()))  # that of the whole program
    return csv.DictReader(lines, delimiter=delimiter)


def read_row(text: str) -> list[str]:
    """Read the first row of a text; an empty text has none."""
    return next(read_rows(io.StringIO(text, newline="")), [])
