"""The schema as JSON: read and write the tables and series of a schema file.

A store may have a hundred thousand series of few types. Series that differ only in their names are
written as one ``many`` object, and series of a known type are read without parsing it again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Literal, cast

from sawlog.store._format import _dtypes, _parse
from sawlog.store._format._schema import (
    Column,
    Log,
    Series,
    Table,
    made_column,
    names_of,
    type_text,
)

_MANY = 1000  # equal series; fewer are written one by one


def logs_from_json(value: Any) -> list[Log]:
    """Parse the tables and series of a schema file.

    Raises:
        Malformed, SchemaError: the value is invalid.
    """
    types: dict[tuple[str, ...], Series] = {}
    found: list[Log] = []
    for each in _parse.sequence(value, "'add'"):
        if type(each) is dict and each.get("kind") == "many":
            found += _many_from_json(each)
        else:
            found.append(_alike(each, types) or log_from_json(each))
    return found


def _many_from_json(said: dict[str, Any]) -> list[Series]:
    """Parse series that differ only in their names."""
    names = _parse.texts(_parse.field(said, "names"), "'names' of many series")
    shape = _parse.shape(said.get("shape"), "the shape of many series")
    like = Series(made_column("", _dtypes.dtype_of(said.get("dtype")), shape), _steps_of(said))
    return [like.renamed(name) for name in names]


def logs_to_texts(logs: Sequence[Log]) -> list[str]:
    """Return the JSON texts of tables and series; many equal series become one ``many``."""
    if len(logs) < _MANY:
        return [log.to_text() for log in logs]
    out: list[str] = []
    for kind, run in itertools.groupby(logs, _group_key):
        alike = list(run)
        if kind is None or len(alike) < _MANY:
            out += [log.to_text() for log in alike]
            continue
        first = cast(Series, alike[0])
        names = json.dumps(names_of(alike), ensure_ascii=False)
        steps = ", ".join([step.to_text() for step in first.steps])
        kinds = type_text(first.column.dtype, first.column.shape)[:-1]
        out.append(f'{{"kind": "many", {kinds}, "steps": [{steps}], "names": {names}}}')
    return out


def _group_key(log: Log) -> tuple[Any, ...] | None:
    if isinstance(log, Table):
        return None
    return (log.steps, log.column.dtype, log.column.shape)


def _alike(value: Any, types: dict[tuple[str, ...], Series]) -> Series | None:
    """Fast path of :func:`log_from_json` for a series of a type that was parsed before.

    ``types`` caches parsed types by their text.
    """
    if type(value) is not dict or value.get("kind") != "series":
        return None
    column = value.get("column")
    if type(column) is not dict or type(name := column.get("name")) is not str:
        return None
    if not name.isascii():
        return None
    try:
        key = repr(column.get("dtype")), repr(column.get("shape")), repr(value.get("steps"))
    except RecursionError:
        return None
    like = types.get(key)
    if like is None:
        like = types[key] = cast(Series, log_from_json(value))
    return like.renamed(name)


def log_from_json(value: Any) -> Log:
    """Parse a table or series (FORMAT.md, section 3).

    Raises:
        Malformed, SchemaError: the value is invalid.
    """
    said = _parse.mapping(value, "a log")
    kind = _parse.choice(said.get("kind"), "'kind' of a log", ("table", "series"))
    if kind == "table":
        columns = _parse.sequence(said.get("columns"), "'columns' of a table")
        ids = _parse.choice(said.get("ids"), "'ids' of a table", ("int", "str"))
        return Table(tuple(map(Column.from_json, columns)), cast(Literal["int", "str"], ids))
    return Series(Column.from_json(said.get("column")), _steps_of(said))


def _steps_of(said: dict[str, Any]) -> tuple[Column, ...]:
    listed = _parse.sequence(said.get("steps"), "'steps' of a series")
    steps = tuple(map(Column.from_json, listed))
    if len(steps) > 1 and len({step.name for step in steps}) != len(steps):
        _parse.fail("a series has a step axis twice")
    return steps
