"""``CsvSink``: a row of CSV for each number.

The file has the long form, ``name,step,value``, because that one can grow: a name that is first
logged in the middle of a run is just another row. A new step axis is a new column; then the file is
rewritten atomically, with empty fields in the earlier rows.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sawlog._csv import cell, line, quoted, read_row, read_rows
from sawlog._text import unguarded
from sawlog._validate import positive_integer
from sawlog.errors import ArgumentError, LogMismatchError
from sawlog.records import Entries, Records
from sawlog.sinks._entries import deepened, logged
from sawlog.sinks._jsonl import OURS, check_axes
from sawlog.sinks._lines import LineSink, foreign
from sawlog.sinks._logdict_metadata import is_news
from sawlog.store._views._cells import Cells, Field
from sawlog.store._views._text import _csv_columns as csv_columns
from sawlog.store._views._text import _titles_of as titles_of


class CsvSink(LineSink):
    """A CSV file with the columns ``name``, one for each step axis, and ``value``.

    A row is one number or text. ``{"loss": {"policy": x}}``, logged from JAX, has the name
    ``loss/policy``. An array has a row for each item, with the name ``name[0,1]``; complex numbers
    have ``name.real`` and ``name.imag``. Masked items have no row. A step axis that a name does not
    have is an empty field. Numbers have as many digits as their dtype needs; bools are ``true`` and
    ``false``. Attributes (``attrs``) are not written; :class:`StoreSink` keeps them.

    ``pandas.read_csv(path).pivot(index="step", columns="name", values="value")`` makes a column for
    each name. Every ``write`` passes its rows to the operating system; ``flush`` and ``close`` sync
    them to disk.

    Args:
        path: the file; missing folders are created.
        exists: what to do if the file exists: ``"append"`` to it, ``"replace"`` it, or raise an
            ``"error"``. A last row that a crash cut off is removed, with a warning.
        limit: the largest number of items of an array; larger arrays are refused.

    Raises:
        StoreExistsError: the file exists and ``exists="error"``, or another sink is writing to it.
        ForeignStoreError: the file was not written by this sink.
        ArgumentError: from ``write``, an array is larger than the limit.
        LogMismatchError: from ``write``, a step axis has the name ``name`` or ``value``, or its
            steps are arrays that do not have the leading axes of the values.
        StoreFullError, StorePermissionError, StoreWriteError: the disk is full, not writable, or
            failed.

    >>> import tempfile, numpy as np
    >>> from sawlog.records import Entries, Records
    >>> path = Path(tempfile.mkdtemp(), "run.csv")
    >>> with CsvSink(path) as sink:
    ...     sink.write(Records({"loss": Entries(np.array([0.5]), {"step": np.array([3])})}))
    ...     sink.write(Records({"grad": Entries(np.array([[1, 2]]), {"step": np.array([4])})}))
    >>> print(path.read_text().strip())
    name,step,value
    loss,3,0.5
    grad[0],4,1
    grad[1],4,2
    """

    def __init__(
        self, path: str | os.PathLike[str], *, exists: str = "append", limit: int = 1024
    ) -> None:
        self._limit = positive_integer("limit", limit)
        super().__init__(path, exists, _whole)
        self._axes = _axes_of(self._file.path)

    def _write(self, records: Records) -> None:
        records = self._shown.records(records)
        there = {name: logged(entries) for name, entries in records.items()}
        there = {name: each for name, each in there.items() if len(each) and is_news(each)}
        axes = list(dict.fromkeys((*self._axes, *(a for e in there.values() for a in e.steps))))
        rows = "".join(r for n, e in there.items() for r in _rows(n, e, axes, self._limit))
        if not rows:
            return
        header = "" if not self._file.is_empty else _header(axes)
        if not header and axes != self._axes:
            self._widen(axes)
        self._file.append((header + rows).encode())
        self._axes = axes

    def _widen(self, axes: list[str]) -> None:
        """Rewrite the file with columns for new step axes."""
        more = [""] * (len(axes) - len(self._axes))

        def write(file: Any) -> None:
            with open(self.path, encoding="utf-8", newline="") as old:
                text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
                rows = read_rows(old)
                next(rows)
                text.write(_header(axes))
                for name, *steps, value in rows:
                    known = [quoted(step) if step else "" for step in steps]
                    text.write(line([quoted(name), *known, *more, quoted(value)]))
                text.detach()

        self._file.replace(write)
        self._axes = axes


def _header(axes: list[str]) -> str:
    return line(["name", *map(cell, axes), "value"])


def _rows(name: str, entries: Entries, axes: list[str], limit: int) -> Iterator[str]:
    """Return the rows of a name, entry by entry."""
    check_axes(name, entries)
    values, shape = entries.values, entries.values.shape
    items = int(np.prod(shape[1:], dtype=np.int64))
    if items > limit:
        raise ArgumentError(
            f"{name!r} would become {items} rows of CSV for each entry, and the limit is {limit}. "
            f"Nothing of the call was taken. Hint: CsvSink(path, limit={items}), leave it out with "
            "Select, or use a JsonlSink or StoreSink."
        )
    titles = [cell(title) for title in titles_of(name, values.dtype, shape[1:])]
    columns = list(csv_columns(Field(name, "value", values.dtype, shape[1:]), Cells(values)))
    each = len(columns) // items if items else 1  # a complex number has two columns
    there = np.ones(shape, bool) if entries.mask is None else deepened(entries.mask, values.ndim)
    there = np.broadcast_to(there, shape).reshape(len(values), items)
    steps = [_step_words(name, entries, axis, items) for axis in axes]
    for row in range(len(values)):
        for number, (title, column) in enumerate(zip(titles, columns, strict=True)):
            item = number // each
            if there[row, item]:
                at = (words[row * items + item] if words else "" for words in steps)
                yield line((title, *at, column[row]))


def _step_words(name: str, entries: Entries, axis: str, items: int) -> list[str]:
    """Return the step of each item of each entry as text; an empty list without the axis."""
    if axis not in entries.steps:
        return []
    steps, shape = entries.steps[axis], entries.values.shape
    if steps.shape != shape[: steps.ndim]:
        raise LogMismatchError(
            f"The steps {axis!r} of {name!r} have the shape {list(steps.shape)}, which are not the "
            f"leading axes of its values {list(shape)}, so CSV has no row for them. Nothing of the "
            "call was taken. Hint: use a JsonlSink or StoreSink."
        )
    wide = np.broadcast_to(deepened(steps, len(shape)), shape).reshape(len(entries) * items)
    columns = list(csv_columns(Field(axis, "step", wide.dtype, ()), Cells(wide)))
    if len(columns) != 1:
        raise LogMismatchError(
            f"The steps {axis!r} of {name!r} are of the dtype {steps.dtype}, for which CSV has no "
            "single column. Hint: use a JsonlSink or StoreSink."
        )
    return columns[0]


def _axes_of(path: Path) -> list[str]:
    with open(path, encoding="utf-8", newline="") as file:
        return [unguarded(axis) for axis in next(read_rows(file), ["name", "value"])[1:-1]]


def _whole(file: Any, path: Path) -> tuple[int, bytes]:
    """Return where the last complete row ends; quotes are counted, as texts have line breaks."""
    good = position = quotes = 0
    header = b""
    for each in file:
        position += len(each)
        quotes += each.count(b'"')
        if not good:
            header += each
            _check_header(header, path)
        if each.endswith(b"\n") and quotes % 2 == 0:
            good = position
    return good, b""


def _check_header(header: bytes, path: Path) -> None:
    """Refuse a file that does not begin with a header of this sink, or a part of one."""
    text = header.decode("utf-8", "replace")
    whole = text.endswith("\n") and text.count('"') % 2 == 0
    fields = read_row(text) if whole else []
    ours = fields[:1] + fields[-1:] == list(OURS) if whole else "name,".startswith(text[:5])
    if not ours:
        raise foreign(path, "CsvSink", header)
