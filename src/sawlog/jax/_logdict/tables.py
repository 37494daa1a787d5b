"""Convert logs to pandas and polars tables: one row for each entry and lane."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog._optional import require
from sawlog.errors import ArgumentError
from sawlog.jax._logdict.entries import LogdictPart, check_known, full_mask, stack
from sawlog.jax._logdict.lanes import occurrence

_AGAIN = "\0again"  # the column that numbers rows with equal lanes and steps; not a valid log name


@dataclasses.dataclass(frozen=True)
class LogColumn:
    """The logged values of one name, with the lane and step columns that place them in the table.

    ``place`` maps the name of a lane or step column to its values, one per row.
    """

    name: str
    place: dict[str, np.ndarray]
    values: np.ndarray


def to_pandas(parts: Sequence[LogdictPart]) -> Any:
    """Return a ``pandas.DataFrame``; see :meth:`sawlog.logdict.to_pandas`."""
    pandas = require("pandas", "arrow", "logs.to_pandas()")
    groups = _groups(parts)
    _check_names(groups)
    frames = [_side_by_side(pandas, columns) for columns in groups]
    if not frames:
        return pandas.DataFrame()
    table = pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    return _plain_where_complete(table)


def _check_names(groups: Sequence[Sequence[LogColumn]]) -> None:
    """Check that no two logs, step axes or lanes share a column.

    Raises:
        ArgumentError: the message names the column.
    """
    places = {name for columns in groups for column in columns for name in column.place}
    names = [column.name for columns in groups for column in columns]
    for name in names:
        if name in places or names.count(name) > 1:
            raise ArgumentError(
                f"Two columns of the table would be called {name!r}: a log, and a step axis, a "
                'lane or another log. Hint: rename one, as in logs.prefix("log/").to_pandas().'
            )


def _side_by_side(pandas: Any, columns: Sequence[LogColumn]) -> Any:
    """Merge columns with the same lanes and step axes into one table."""
    table: Any = None
    for column in columns:
        # Steps are nullable, too: rows of logs with other step axes have none.
        place = {name: _series(pandas, values) for name, values in column.place.items()}
        own = pandas.DataFrame({**place, _AGAIN: _again(column)})
        own[column.name] = _series(pandas, column.values)
        on = [*columns[0].place, _AGAIN]
        table = own if table is None else table.merge(own, on=on, how="outer")
    lanes = [name for name in columns[0].place if _is_lane(name)]
    if lanes and len(columns) == 1:
        table = table.sort_values(lanes, kind="stable")
    return table.drop(columns=_AGAIN).reset_index(drop=True)


def _plain_where_complete(table: Any) -> Any:
    """Convert nullable columns without missing values to numpy dtypes."""
    for name in table.columns:
        kind = getattr(table[name].dtype, "numpy_dtype", None)
        if kind is not None and not table[name].isna().any():
            table[name] = table[name].astype(kind)
    return table


def to_polars(parts: Sequence[LogdictPart]) -> Any:
    """Return a ``polars.DataFrame``; see :meth:`sawlog.logdict.to_polars`."""
    polars = require("polars", "arrow", "logs.to_polars()")
    return polars.from_pandas(to_pandas(parts))


def _groups(parts: Sequence[LogdictPart]) -> list[list[LogColumn]]:
    """Group the columns that have the same lanes and step axes."""
    groups: dict[tuple[str, ...], list[LogColumn]] = {}
    for part in parts:
        for column in _columns(part):
            groups.setdefault(tuple(sorted(column.place)), []).append(column)
    return list(groups.values())


def _columns(part: LogdictPart) -> Iterator[LogColumn]:
    """Yield a column for each leaf of a key; a nested one is called ``loss/policy``."""
    from sawlog.jax._saving.records import to_host

    wide = stack(part)
    check_known([wide], "make the table")
    outer = wide.outer
    mask = np.moveaxis(np.asarray(full_mask(wide)), outer, 0)
    entry, *lanes = np.nonzero(mask)
    place = {_lane_name(i): lane for i, lane in enumerate(lanes)}

    def rows(x: Any) -> np.ndarray:
        array, _ = to_host(x, f"the value of {part.slot.key!r}")
        return np.moveaxis(array, outer, 0)[(entry, *lanes)]

    if clash := set(place) & set(wide.slot.steps):
        raise ArgumentError(
            f"{part.slot.key!r} has a step axis {clash.pop()!r}, which is also the name of a "
            "column of vmap lanes. Hint: give the step axis another name."
        )
    place |= {name: rows(x) for name, x in zip(wide.slot.steps, wide.steps, strict=True)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(wide.value)[0]:
        name = "/".join([part.slot.key, *map(_label, path)])
        yield LogColumn(name, place, rows(leaf))


def _lane_name(number: int) -> str:
    return f"lane{number}" if number else "lane"


def _is_lane(name: str) -> bool:
    return (name.startswith("lane") and name[4:].isdigit()) or name == "lane"


def _label(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _again(column: LogColumn) -> np.ndarray:
    """Return for each row the number of earlier rows with the same lane and steps."""
    codes = [np.unique(x, return_inverse=True)[1].reshape(-1) for x in column.place.values()]
    return occurrence(codes) if codes else np.arange(len(column.values))


def _series(pandas: Any, values: np.ndarray) -> Any:
    """Return a pandas series: nullable for integers and booleans, objects for array cells."""
    if values.ndim > 1:
        cells = np.empty(len(values), object)
        for i, value in enumerate(values):
            cells[i] = value
        return pandas.Series(cells, dtype=object)
    if values.dtype.kind == "V" or values.dtype.name.startswith(("bfloat", "float8", "float4")):
        values = values.astype(np.float32)
    if values.dtype.kind in "iub":
        kind = {"i": "Int", "u": "UInt", "b": "boolean"}[values.dtype.kind]
        bits = "" if kind == "boolean" else str(8 * values.dtype.itemsize)
        return pandas.Series(pandas.array(values, dtype=kind + bits))
    return pandas.Series(values)
