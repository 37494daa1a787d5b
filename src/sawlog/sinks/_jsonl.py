"""``JsonlSink``: a line of JSON for each entry."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sawlog.errors import LogMismatchError
from sawlog.records import Entries, Records
from sawlog.sinks._entries import logged, step_mask
from sawlog.sinks._lines import LineSink, foreign
from sawlog.sinks._logdict_metadata import is_news
from sawlog.store._views._cells import Cells
from sawlog.store._views._text import _json_cells as json_cells

OURS = ("name", "value")


class JsonlSink(LineSink):
    """A file of JSON lines, one for each entry: ``{"name": "loss", "step": 3, "value": 0.5}``.

    A key for each step axis follows the name. ``{"loss": {"policy": x}}``, logged from JAX, has the
    name ``loss/policy``. Arrays are nested lists, complex numbers objects with ``real`` and
    ``imag``; NaN and infinities, which JSON does not have, are the strings ``"NaN"``,
    ``"Infinity"`` and ``"-Infinity"``. Entries that are masked entirely have no line; masked items
    and their steps are ``null``. Numbers have as many digits as their dtype needs. Attributes
    (``attrs``) and dtypes are not written; :class:`StoreSink` keeps them.

    Every ``write`` passes its lines to the operating system; ``flush`` and ``close`` sync them to
    disk. ``pandas.read_json(path, lines=True)`` reads the file, also while it grows.

    Args:
        path: the file; missing folders are created.
        exists: what to do if the file exists: ``"append"`` to it, ``"replace"`` it, or raise an
            ``"error"``. A last line that a crash cut off is removed, with a warning.

    Raises:
        StoreExistsError: the file exists and ``exists="error"``, or another sink is writing to it.
        ForeignStoreError: the file was not written by this sink.
        LogMismatchError: from ``write``: a step axis has the name ``name`` or ``value``.
        StoreFullError, StorePermissionError, StoreWriteError: the disk is full, not writable, or
            failed.

    >>> import tempfile, numpy as np
    >>> from sawlog.records import Entries, Records
    >>> path = Path(tempfile.mkdtemp(), "run.jsonl")
    >>> with JsonlSink(path) as sink:
    ...     sink.write(Records({"x": Entries(np.array([[1.0, np.nan]]), {"step": np.array([3])})}))
    >>> print(path.read_text().strip())
    {"name": "x", "step": 3, "value": [1.0, "NaN"]}
    """

    def __init__(self, path: str | os.PathLike[str], *, exists: str = "append") -> None:
        super().__init__(path, exists, _whole)

    def _write(self, records: Records) -> None:
        records = self._shown.records(records)
        there = {name: logged(entries) for name, entries in records.items() if is_news(entries)}
        lines = "".join(_lines(name, entries) for name, entries in there.items())
        self._file.append(lines.encode())


def check_axes(name: str, entries: Entries) -> None:
    """Refuse step axes with the name of another column.

    Raises:
        LogMismatchError: a step axis is called ``name`` or ``value``.
    """
    for axis in entries.steps:
        if axis in OURS:
            raise LogMismatchError(
                f"{name!r} has a step axis called {axis!r}, which in this file is the {axis} of an "
                "entry. Nothing of the call was taken. Hint: rename the axis, or use a StoreSink."
            )


def _lines(name: str, entries: Entries) -> str:
    check_axes(name, entries)
    if not len(entries):
        return ""
    keys = [json.dumps(axis, ensure_ascii=False) + ": " for axis in entries.steps]
    columns = [
        json_cells(Cells.of(array, step_mask(entries, array)), f"step axis {axis!r} of {name!r}")
        for axis, array in entries.steps.items()
    ]
    values = json_cells(Cells.of(entries.values, entries.mask), repr(name))
    head = '{"name": ' + json.dumps(name, ensure_ascii=False)
    lines = []
    for value, *steps in zip(values, *columns, strict=True):
        at = "".join(f", {key}{step}" for key, step in zip(keys, steps, strict=True))
        lines.append(f'{head}{at}, "value": {value}}}\n')
    return "".join(lines)


def _whole(file: Any, path: Path) -> tuple[int, bytes]:
    """Return where the last complete line ends, and a line break if only that is missing."""
    first = file.readline()
    size = file.seek(0, os.SEEK_END)
    if not (_is_line(first) or (len(first) == size and b'{"name": '.startswith(first[:9]))):
        raise foreign(path, "JsonlSink", first)
    start = _last_line(file, size)
    file.seek(start)
    last = file.read()
    if last.endswith(b"\n") or not last:
        return size, b""
    return (size, b"\n") if _is_line(last) else (start, b"")


def _last_line(file: Any, size: int) -> int:
    """Return where the last line begins; the size of the file if it ends with a line break."""
    end, block = size, 1 << 16
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return int(start + at + 1)
        end = start
    return 0


def _is_line(line: bytes) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and set(OURS) <= set(value)
