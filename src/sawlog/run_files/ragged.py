"""Logs of examples of different lengths, in stores whose columns have a fixed shape.

A forward or backward log is ``[examples, positions, ...]``. Its column has the number of positions
of the first batch. Shorter examples are padded with zeros. The remaining positions of longer ones
are in further columns, ``name+1``, ``name+2`` and so on, each as long as all columns before it
together, in tables with only the ids of these examples. ``name.positions`` has the lengths of the
examples that differ from the first batch. If all examples have the same length, there is only the
one column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sawlog import store
from sawlog.errors import SchemaError
from sawlog.run_files._encode import SCALE

LENGTHS = ".positions"
_BEYOND = re.compile(r"\+\d+$")
_KINDS = ("forward/", "backward/")


def is_part(name: str) -> bool:
    """Return whether a column has further positions of another column, or lengths."""
    return name.startswith(_KINDS) and bool(name.endswith(LENGTHS) or _BEYOND.search(name))


def append(writer: store.Writer, ids: np.ndarray, columns: Mapping[str, Any]) -> int:
    """Append rows to a store, with any number of positions; return the number of bytes.

    Raises:
        SchemaError: rows differ from earlier ones in more than the number of positions.
    """
    try:
        return _append(writer, ids, columns)
    except SchemaError:
        names = [name for name in columns if _has_positions(name, columns[name])]
        if not any(_other_length(writer, name, columns[name]) for name in names):
            raise
        return _append(writer, ids, columns)  # another process created the column first


def _append(writer: store.Writer, ids: np.ndarray, columns: Mapping[str, Any]) -> int:
    main: dict[str, Any] = {}
    written = 0
    for name, rows in columns.items():
        main[name] = rows
        if not _has_positions(name, rows) or name not in writer.schema:
            continue
        first, length = writer.schema.column(name).shape[0], rows.shape[1]
        if length == first and name + LENGTHS not in writer.schema:
            continue
        # Write the further positions of a row before the row itself.
        writer.append(ids, {name + LENGTHS: np.full(len(ids), length, np.int64)})
        for number, (start, stop) in enumerate(_spans(first, length)):
            piece = _padded(rows[:, start:stop], stop - start)
            if number:
                writer.append(ids, {f"{name}+{number}": piece})
                written += piece.nbytes
            else:
                main[name] = piece
    writer.append(ids, main)
    return written + sum(column.nbytes for column in main.values())


def _has_positions(name: str, rows: Any) -> bool:
    return name.startswith(_KINDS) and not name.endswith(SCALE) and rows.ndim > 1


def _other_length(writer: store.Writer, name: str, rows: Any) -> bool:
    if name not in writer.schema:
        return False
    shape = tuple(writer.schema.column(name).shape)
    return shape[1:] == rows.shape[2:] and shape[0] != rows.shape[1]


def _spans(first: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of each column; each further one doubles their number."""
    start, stop = 0, max(1, first)
    yield start, stop
    while stop < length:
        start, stop = stop, 2 * stop
        yield start, stop


def _padded(rows: np.ndarray, length: int) -> np.ndarray:
    """Pad ``[n, positions, ...]`` with zeros to ``length`` positions."""
    if rows.shape[1] == length:
        return np.ascontiguousarray(rows)
    made = np.zeros((len(rows), length, *rows.shape[2:]), rows.dtype)
    made[:, : rows.shape[1]] = rows
    return made


# -- reading --------------------------------------------------------------------------------------


def is_ragged(reader: store.Reader, name: str) -> bool:
    """Return whether the examples of a log differ in their number of positions."""
    return name + LENGTHS in reader.names


def lengths_of(reader: store.Reader, name: str, ids: Any) -> np.ndarray:
    """Return the number of positions of each example in a log, ``[examples]``."""
    wanted = _listed(ids)
    shape = reader.schema.column(name).shape
    lengths = np.full(len(wanted), shape[0] if shape else 1, np.int64)
    if is_ragged(reader, name):
        places, own = _there(reader, name + LENGTHS, wanted)
        if own:
            lengths[places] = reader.gather(own, [name + LENGTHS])[name + LENGTHS]
    return lengths


def gather(reader: store.Reader, ids: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the rows of examples, like :meth:`sawlog.store.Reader.gather`, with all positions.

    Logs whose examples differ in length are ``[examples, longest, ...]``, padded with zeros;
    :func:`lengths_of` returns the lengths.
    """
    wanted, names = _listed(ids), list(names)
    found = reader.gather(ids, names)
    for name in names:
        if is_ragged(reader, name):
            found[name] = _in_full(reader, name, wanted, found[name])
    return found


def _in_full(reader: store.Reader, name: str, wanted: list[Any], rows: np.ndarray) -> np.ndarray:
    lengths = lengths_of(reader, name, wanted)
    most = int(lengths.max(initial=0))
    whole = np.zeros((len(rows), most, *rows.shape[2:]), rows.dtype)
    for number, (start, stop) in enumerate(_spans(rows.shape[1], most)):
        width = min(stop, most) - start
        longer = np.flatnonzero(lengths > start)
        if not len(longer):
            continue
        if number:
            column = f"{name}+{number}"
            piece = reader.gather([wanted[i] for i in longer], [column])[column]
        else:
            piece = rows[longer]
        whole[longer, start : start + width] = piece[:, :width]
    whole[np.arange(most) >= lengths[:, None]] = 0  # left over where a shorter row replaced one
    return whole


def _there(reader: store.Reader, name: str, wanted: list[Any]) -> tuple[list[int], list[Any]]:
    """Return the ids that a table has, and their places among ``wanted``."""
    known = set(_listed(reader.ids(name)))
    places = [place for place, each in enumerate(wanted) if each in known]
    return places, [wanted[place] for place in places]


def _listed(ids: Any) -> list[Any]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
