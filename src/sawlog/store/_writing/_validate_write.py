"""Validate a write: convert values to arrays, and check them against the schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.errors import SchemaError
from sawlog.records import Entries, lost_by_numpy
from sawlog.store._format import _dtypes, _ids
from sawlog.store._format._parse import MOST_AXES
from sawlog.store._format._schema import (
    Column,
    Schema,
    Series,
    Table,
    check_name,
    check_names,
    unknown_name,
)
from sawlog.store._format._unicode import is_returnable
from sawlog.store._writing._deferred_rows import DeferredRows
from sawlog.store._writing._pending import SMALL

_FIXED = "The schema was fixed when the store was created; without schema= it takes new names."


def as_array(name: str, value: Any) -> np.ndarray:
    """Convert a value to an array.

    Raises:
        SchemaError: numpy cannot convert it, or would lose a part of it.
    """
    if lost := lost_by_numpy(value):
        raise SchemaError(
            f"numpy would drop {lost} from the value of {name!r}. The call was refused as a whole. "
            "Hint: x.filled(...) for masked arrays, or, for entries, "
            "write({name: Entries(x.data, steps, mask=~x.mask)}); strip strings; "
            "np.array(x, dtype) for lists of several types."
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(
            f"The value of {name!r} is a {type(value).__name__} that numpy cannot convert: "
            f"{error}. Hint: convert it to a numpy array first; for torch, "
            "x.detach().cpu().numpy()."
        ) from error
    _dtypes.normalize_dtype(array.dtype, repr(name))
    if array.dtype.kind in "UV" and not is_returnable(array):
        raise SchemaError(
            f"The value of {name!r} has a string with a number beyond the last code point, which "
            "numpy cannot return. The call was refused as a whole. Hint: write the numbers, with "
            "x.view(np.uint32)."
        )
    return array


def as_entry(name: str, value: Any) -> np.ndarray:
    """Convert the value of one entry to an array, to which an axis can be added.

    Raises:
        SchemaError: numpy cannot convert it, or it has too many axes.
    """
    array = as_array(name, value)
    if array.ndim >= MOST_AXES:
        raise SchemaError(
            f"The value of {name!r} has {array.ndim} axes, and an entry has at most "
            f"{MOST_AXES - 1}. The call was refused as a whole. Hint: reshape it to fewer."
        )
    return array


def plain_entries(name: str, entries: Entries) -> Entries:
    """Convert values, steps and mask to arrays.

    Raises:
        SchemaError: one cannot be stored, or the mask does not match the values.
    """
    values = as_array(name, entries.values)
    steps = {axis: as_array(axis, array) for axis, array in entries.steps.items()}
    mask = entries.mask
    if mask is not None:
        mask = as_array(f"mask of {name}", mask)
        if mask.dtype != bool or mask.shape != values.shape[: mask.ndim]:
            raise SchemaError(
                f"The mask of {name!r} is {mask.dtype}{list(mask.shape)}, and its values have the "
                f"shape {list(values.shape)}. Hint: use a bool mask with the leading axes of "
                "the values."
            )
    if values is entries.values and mask is entries.mask and _same(steps, entries.steps):
        return entries
    return Entries(values, steps, mask, entries.attrs)


def _same(steps: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return all(steps[axis] is others[axis] for axis in steps)


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Rows of a table: ids, and an array for each name."""

    ids: np.ndarray | list[str]
    values: dict[str, np.ndarray | DeferredRows]

    def take(self, chosen: np.ndarray) -> RowBatch:
        """Return the rows where ``chosen`` is true."""
        ids = self.ids
        if isinstance(ids, list):
            ids = [x for x, keep in zip(ids, chosen, strict=True) if keep]
        else:
            ids = ids[chosen]
        return RowBatch(ids, {name: array[chosen] for name, array in self.values.items()})

    def as_table(self, schema: Schema, fixed: bool) -> Table:
        """Return the table to declare for these rows.

        Raises:
            UnknownNameError: the schema of the store is fixed.
        """
        if fixed:
            raise unknown_name(next(iter(self.values)), schema, _FIXED)
        columns = [Column(name, a.dtype, a.shape[1:]) for name, a in self.values.items()]
        return Table(tuple(columns), _ids.kind_of(self.ids))


def rows_of(ids: Any, values: Mapping[str, Any]) -> RowBatch:
    """Check the arguments of ``append``.

    Raises:
        SchemaError: they are invalid, or of different lengths.
    """
    if not isinstance(values, Mapping) or not values:
        raise SchemaError(
            f"append(ids, values) takes a dict with at least one array; got {values!r:.80}"
        )
    known = _ids.normalize_ids(ids)
    arrays = {name: _as_rows(name, value) for name, value in values.items()}
    for name, array in arrays.items():
        check_name(name)
        if array.ndim == 0 or len(array) != len(known):
            raise SchemaError(
                f"The call has {len(known)} ids, but {name!r} has the shape {array.shape}. "
                "Hint: the first axis of every array has one item for each id."
            )
    return RowBatch(known, arrays)


def _as_rows(name: str, value: Any) -> np.ndarray | DeferredRows:
    if isinstance(value, DeferredRows):
        _dtypes.normalize_dtype(value.dtype, repr(name))
        return value
    return as_array(name, value)


def table_of(schema: Schema, rows: RowBatch) -> Table | None:
    """Return the table of these rows, or None for a new one.

    Raises:
        SchemaError: names, dtypes or shapes differ from the table's.
    """
    there = [name for name in rows.values if name in schema]
    if not there:
        return None
    table = schema[there[0]]
    if not isinstance(table, Table):
        raise SchemaError(
            f"{there[0]!r} has entries with steps, not rows with ids. "
            "Hint: write it with log() or extend(), or choose another name for the rows."
        )
    if set(table.names) != set(rows.values):
        raise SchemaError(
            f"The names {_listed(table.names)} are written together, and this call has "
            f"{_listed(rows.values)}. Hint: pass all of them, or start another table with new "
            "names only."
        )
    if _ids.kind_of(rows.ids) != table.ids and len(rows.ids):
        raise SchemaError(
            f"The ids of {table.names[0]!r} are of the kind {table.ids!r}, and these are not: "
            f"{_ids.shown_ids(rows.ids)}. Hint: use one kind of ids in a table."
        )
    for column in table.columns:
        check_fits(column, rows.values[column.name], "rows")
    return table


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


def check_fits(column: Column, array: np.ndarray | DeferredRows, what: str) -> None:
    """Check the dtype and shape of rows or entries.

    Raises:
        SchemaError: they differ from the column's. The message names both types.
    """
    if array.shape[1:] == column.shape and (
        array.dtype == column.dtype or _fits(array.dtype, column.dtype)
    ):
        return
    given = Column(column.name, array.dtype, array.shape[1:])
    raise SchemaError(
        f"{column.name!r} was first written with {what} of type {column}, and these are {given}. "
        f"The call was refused as a whole. Hint: convert them"
        + (f", with .astype({str(column.dtype)!r})" if given.dtype != column.dtype else "")
        + ", or use another name."
    )


def _fits(given: np.dtype, fixed: np.dtype) -> bool:
    if _dtypes.is_extension(given) or _dtypes.is_extension(fixed):
        return False
    if given.kind == fixed.kind and given.kind in "US":
        return given.itemsize <= fixed.itemsize
    return given.newbyteorder("<") == fixed


def series_of(schema: Schema, name: str, entries: Entries) -> Series | None:
    """Return the series of these entries, or None for a new one.

    Raises:
        SchemaError: dtype, shape or steps differ from the series'.
    """
    series = schema.find(name)
    if series is None:
        return None
    if isinstance(series, Table):
        raise SchemaError(
            f"{name!r} has rows with ids, not entries with steps. "
            "Hint: write it with append(), or choose another name for the entries."
        )
    if {*series.axes} != entries.steps.keys():
        raise SchemaError(
            f"{name!r} was first written with the step axes ({_listed(series.axes)}), and these "
            f"entries have ({_listed(entries.steps)}). Hint: pass the same steps every time."
        )
    check_fits(series.column, entries.values, "entries")
    for step in series.steps:
        check_fits(step, entries.steps[step.name], f"steps (for {name!r})")
    return series


def all_series(schema: Schema, records: Mapping[str, Entries]) -> dict[str, Series | None]:
    """Apply :func:`series_of` to each name, quickly for many names of few types.

    Raises:
        SchemaError: dtype, shape or steps differ from the series'.
    """
    if not schema.has_any(records):
        return dict.fromkeys(records)
    fitting: set[tuple[Any, ...]] = set()
    found: dict[str, Series | None] = {}
    find = schema.find
    for name, entries in records.items():
        series = find(name)
        if type(series) is Series:
            own, values = series.column, entries.values
            steps, given = id(series.steps), id(entries.steps)
            key = (steps, id(own.dtype), own.shape, given, id(values.dtype), values.shape[1:])
            if key not in fitting:
                series_of(schema, name, entries)
                fitting.add(key)
            found[name] = series
        else:
            found[name] = series_of(schema, name, entries)
    return found


def as_series(schema: Schema, new: Mapping[str, Entries], fixed: bool) -> dict[str, Series]:
    """Return the series to declare for new names, quickly for many names of few types.

    Raises:
        SchemaError: a name or dtype cannot be stored.
        UnknownNameError: the schema of the store is fixed.
    """
    out: dict[str, Series] = {}
    types: dict[Any, Series] = {}
    check_names(new)
    if new and fixed:
        raise unknown_name(next(iter(new)), schema, _FIXED)
    for name, entries in new.items():
        values = entries.values
        key = (id(entries.steps), id(values.dtype), values.shape[1:])  # alive while `new` is
        like = types.get(key)
        if like is None:
            like = types[key] = _as_series(name, entries)
        out[name] = like.renamed(name)
    return out


def _as_series(name: str, entries: Entries) -> Series:
    steps = [Column(axis, array.dtype, array.shape[1:]) for axis, array in entries.steps.items()]
    return Series(Column(name, entries.values.dtype, entries.values.shape[1:]), tuple(steps))


def entry_values(known: Mapping[str, Series], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert the values of one entry of each name to arrays ``[1, ...]``.

    Small arrays are read-only copies, and those of floats are rows of one array.

    A Python integer becomes a float if the series has floats and represents it exactly, as in
    ``log({"lr": 1})``.

    Raises:
        SchemaError: numpy cannot convert a value.
    """
    if not isinstance(values, Mapping):
        raise SchemaError(f"log(values) takes a dict of values by name; got {values!r:.80}")
    values = values if type(values) is dict else dict(values)
    floats = [value for value in values.values() if type(value) is float]
    rows = iter(_read_only(np.array(floats).reshape(-1, 1)))
    out: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if type(value) is float:
            out[name] = next(rows)
            continue
        array = as_entry(name, value)
        series = known.get(name) if type(value) is int else None
        if series is not None and series.column.dtype.kind == "f":
            cast = array.astype(series.column.dtype)
            array = cast if int(cast) == value else array
        out[name] = _owned(array[None])
    return out


def shared_step(axis: str, step: Any) -> np.ndarray:
    """Convert the step of one entry to a read-only array ``[1, ...]`` for all names of a call."""
    return _read_only(np.array(as_entry(axis, step)[None], order="C"))


def _owned(array: np.ndarray) -> np.ndarray:
    """Copy a small array, which its owner may change; a large one is copied into its buffer."""
    return _read_only(np.array(array, order="C")) if array.nbytes < SMALL else array


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
