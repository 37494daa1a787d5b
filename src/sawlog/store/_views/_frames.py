"""Logs as pyarrow tables, and as pandas and polars data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog._optional import require
from sawlog.errors import ArgumentError
from sawlog.store._format._dtypes import name_of
from sawlog.store._format._unicode import is_unicode
from sawlog.store._views._arrow import pyarrow
from sawlog.store._views._cells import TEXT, Cells, Field, Sheet, joined
from sawlog.store._views._sheets import only_sheet, sheets_of
from sawlog.store._views._tabular import batches_of, schema_of
from sawlog.store._views._widen import times, widened

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader

_ALL_AT_ONCE = 3 << 30  # bytes; so that batches are as large as the segments
_SMALL = 64 << 10  # bytes; smaller segments are joined


def to_arrow(
    reader: Reader, names: str | Iterable[str] | None = None, *, long: bool = False
) -> Any:
    """Return entries, or the rows of a table, as a ``pyarrow.Table``.

    Entries are side by side: columns for the step axes, then one for each name, and a row for all
    entries with the same steps. If a name has the same steps more than once, its entries are
    matched in order. Rows are sorted by step if every name was logged in that order, and otherwise
    in the order of logging. A cell is null if a name has no entry there, or a masked one; so are
    the steps of lanes that did not log. Names without steps are joined if they have the same number
    of entries.

    With ``long=True`` entries are one below the other: ``name``, step axes, ``value``. The rows of
    a table have a column ``id``, then one for each name.

    Columns share the memory of the files if Arrow has the type, with a chunk for each segment. See
    :func:`sawlog.store.export` for other types.

    Raises:
        ArgumentError: the names do not form one table, or Arrow has no type for them.
        UnknownNameError: the store has no such name.
        MissingPackageError: pyarrow is not installed.
    """
    pa = pyarrow("to_arrow()")
    sheet = _sheet(reader, names, long)
    notes = {"store": reader.id, "created": reader.created, "meta": reader.meta}
    schema = schema_of(sheet, notes)
    batches = batches_of(sheet, schema, _ALL_AT_ONCE, _SMALL, copy=False)
    return pa.Table.from_batches(batches, schema)


def to_polars(
    reader: Reader, names: str | Iterable[str] | None = None, *, long: bool = False
) -> Any:
    """Return a ``polars.DataFrame`` that shares the memory of :func:`to_arrow`.

    Axes become ``Array``, complex numbers and structured types ``Struct``. polars has no metadata;
    the original types are in ``reader.schema``.

    Raises:
        ArgumentError, UnknownNameError, MissingPackageError: as :func:`to_arrow`.
    """
    polars = require("polars", "arrow", "to_polars()")
    return polars.from_arrow(to_arrow(reader, names, long=long), rechunk=False)


def to_pandas(
    reader: Reader, names: str | Iterable[str] | None = None, *, long: bool = False
) -> Any:
    """Return a ``pandas.DataFrame`` with the rows and columns of :func:`to_arrow`.

    Columns without missing values have numpy dtypes, and share the memory of the file if one
    segment holds all of it. Those are read-only; ``frame.copy()`` is writable. Columns with missing
    values have nullable dtypes, so that integers stay integers and NaN differs from NA. A cell with
    axes is an array, a masked array if parts were not logged, or None. bfloat16 and float8 become
    float32; ``frame.attrs["sawlog"]`` has the original dtypes.

    Raises:
        ArgumentError, UnknownNameError, MissingPackageError: as :func:`to_arrow`.
    """
    pandas = require("pandas", "arrow", "to_pandas()")
    sheet = _sheet(reader, names, long)
    shown = [(n, field) for n, field in enumerate(sheet.fields) if field.role != "shape"]
    batches = list(sheet.batches(_ALL_AT_ONCE))
    columns = {}
    for number, field in shown:
        columns[field.name] = _column(pandas, field, [batch[number] for batch in batches])
    frame = pandas.DataFrame(columns, copy=False)
    changed = {
        field.name: name_of(field.dtype)
        for _, field in shown
        if field.dtype != TEXT and frame[field.name].dtype != field.dtype
    }
    frame.attrs["sawlog"] = {"dtypes": changed}
    return frame


def _sheet(reader: Reader, names: str | Iterable[str] | None, long: bool) -> Sheet:
    return only_sheet(sheets_of(reader, names, long), "")


def _column(pandas: Any, field: Field, parts: list[Cells]) -> Any:
    """Return one column; ``parts`` are its cells in order."""
    if field.shape is None or field.shape:
        return _objects([cell for part in parts for cell in _arrays(part)])
    cells = joined(parts) if parts else Cells(np.empty(0, field.dtype))
    values, valid = cells.values, cells.valid
    if valid is not None and valid.all():
        valid = None
    kind = values.dtype.kind
    if kind == "U" and not is_unicode(values):
        raise ArgumentError(
            f"{field.name!r} has text that is not valid Unicode, which pandas cannot hold. "
            "Hint: leave it out with names=[...], or read it with reader.read(name)."
        )
    if values.dtype == TEXT or kind == "U":
        return pandas.Series(_cells_of(values, valid), dtype=None if len(values) else object)
    values = widened(values)
    kind = values.dtype.kind
    if kind in "Mm":
        return _times(values, valid, repr(field.name))
    if kind in "SV" or (valid is not None and (kind == "c" or values.dtype.itemsize > 8)):
        return _objects(_cells_of(values, valid))
    return values if valid is None else _nullable(pandas, values, ~valid)


def _cells_of(values: np.ndarray, valid: np.ndarray | None) -> list[Any]:
    items = list(values) if values.dtype.kind == "V" else values.tolist()
    if valid is None:
        return items
    return [item if ok else None for item, ok in zip(items, valid.tolist(), strict=True)]


def _objects(items: list[Any]) -> np.ndarray:
    out = np.empty(len(items), dtype=object)
    for number, item in enumerate(items):
        out[number] = item
    return out


def _arrays(cells: Cells) -> list[Any]:
    rows: list[Any] = list(cells.values)
    if cells.mask is not None:
        shape = cells.values.shape
        mask = cells.mask.reshape(cells.mask.shape + (1,) * (len(shape) - cells.mask.ndim))
        hidden = ~np.broadcast_to(mask, shape)
        rows = [np.ma.masked_array(row, hide) for row, hide in zip(rows, hidden, strict=True)]
    if cells.valid is not None:
        rows = [row if ok else None for row, ok in zip(rows, cells.valid.tolist(), strict=True)]
    return rows


def _times(values: np.ndarray, valid: np.ndarray | None, what: str) -> np.ndarray:
    out = times(values, what)
    if np.datetime_data(out.dtype)[0] == "D":  # pandas has no days
        out = times(out.astype("<M8[h]"), what)
    if valid is not None:
        out = out.copy()
        out[~valid] = np.array("NaT", out.dtype)
    return out


def _nullable(pandas: Any, values: np.ndarray, missing: np.ndarray) -> Any:
    if values.dtype == np.float16:  # pandas has no nullable float16
        values = values.astype(np.float32)
    kinds = {"b": "BooleanArray", "i": "IntegerArray", "u": "IntegerArray", "f": "FloatingArray"}
    return getattr(pandas.arrays, kinds[values.dtype.kind])(values, missing)
