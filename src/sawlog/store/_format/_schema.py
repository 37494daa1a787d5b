"""The schema: tables of rows with example ids, and series of entries with steps."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sawlog._names import did_you_mean
from sawlog.errors import SchemaError, UnknownNameError
from sawlog.store._format import _dtypes, _parse
from sawlog.store._format._empty_items import empty_items_of_row

RESERVED = "sawlog."
MOST_CHARACTERS = 4096  # of a name, which a long table repeats in every row
_SUSPICIOUS = (RESERVED, "__metadata__")
_quoted = json.encoder.encode_basestring  # as json.dumps with ensure_ascii=False


@dataclasses.dataclass(frozen=True)
class Column:
    """A name, with the dtype and shape of one row or entry."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        dtype = _dtypes.normalize_dtype(np.dtype(self.dtype), f"{self.name!r}")
        object.__setattr__(self, "dtype", dtype)
        if self.shape != ():
            object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def empty_items(self) -> int:
        """The items or empty lists of a row without bytes, else 0."""
        return empty_items_of_row(self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value (FORMAT.md, section 3)."""
        name = _dtypes.name_of(self.dtype)
        return {"name": self.name, "dtype": name, "shape": list(self.shape)}

    def to_text(self) -> str:
        """Return :meth:`to_json` as text."""
        name = _quoted(self.name)
        return f'{{"name": {name}, {type_text(self.dtype, self.shape)}'

    @classmethod
    def from_json(cls, value: Any) -> Column:
        """Parse a column (FORMAT.md, section 3).

        Raises:
            Malformed, SchemaError: the value is invalid.
        """
        said = _parse.mapping(value, "a column")
        name = _parse.text(said.get("name"), "the name of a column")
        shape = _parse.shape(said.get("shape"), f"the shape of {_parse.shown(name)}")
        return made_column(name, _dtypes.dtype_of(said.get("dtype")), shape)


def made_column(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
    """Build a column from checked parts, quickly: a store may have a hundred thousand."""
    made = object.__new__(Column)
    set_parts = made.__dict__
    set_parts["name"], set_parts["dtype"], set_parts["shape"] = name, dtype, shape
    return made


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows with example ids; the names of a table are always written together."""

    columns: tuple[Column, ...]
    ids: Literal["int", "str"] = "int"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise SchemaError("A table needs at least one name. Hint: append(ids, {name: values})")
        if self.ids not in ("int", "str"):
            raise SchemaError(f"ids of a table must be 'int' or 'str'; got {self.ids!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.columns)

    @property
    def first(self) -> str:
        """Its first name."""
        return self.columns[0].name

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes, without its id."""
        return sum(column.row_bytes for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value (FORMAT.md, section 3)."""
        columns = [column.to_json() for column in self.columns]
        return {"kind": "table", "ids": self.ids, "columns": columns}

    def to_text(self) -> str:
        """Return :meth:`to_json` as text."""
        return json.dumps(self.to_json(), ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Series:
    """Entries of one name, each with a value for every step axis."""

    column: Column
    steps: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        if type(self.steps) is not tuple:
            object.__setattr__(self, "steps", tuple(self.steps))

    @property
    def names(self) -> tuple[str, ...]:
        """Its one name."""
        return (self.column.name,)

    @property
    def first(self) -> str:
        """Its one name."""
        return self.column.name

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its step axes."""
        return tuple([step.name for step in self.steps])

    def renamed(self, name: str) -> Series:
        """Return an equal series with another name."""
        like, made = self.column, object.__new__(Series)
        made.__dict__["column"] = made_column(name, like.dtype, like.shape)
        made.__dict__["steps"] = self.steps
        return made

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value (FORMAT.md, section 3)."""
        steps = [step.to_json() for step in self.steps]
        return {"kind": "series", "column": self.column.to_json(), "steps": steps}

    def to_text(self) -> str:
        """Return :meth:`to_json` as text, quickly: a store may have a hundred thousand series."""
        steps = ", ".join([step.to_text() for step in self.steps]) if self.steps else ""
        return f'{{"kind": "series", "column": {self.column.to_text()}, "steps": [{steps}]}}'


Log = Table | Series


@functools.lru_cache(1024)
def type_text(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """Return the end of the JSON text of a column."""
    return json.dumps({"dtype": _dtypes.name_of(dtype), "shape": list(shape)})[1:]


class Schema(Mapping[str, Log]):
    """Every name of a store, with its table or series."""

    def __init__(self, logs: Iterable[Log] = ()) -> None:
        self._by_name: dict[str, Log] = {}
        for log in logs:
            self.add(log)

    def add(self, log: Log) -> None:
        """Add one table or series.

        Raises:
            SchemaError: a name is invalid or taken.
        """
        self.add_all((log,))

    def add_all(self, logs: Sequence[Log]) -> None:
        """Add tables and series, all of them or none.

        Raises:
            SchemaError: a name is invalid or taken.
        """
        self.check(logs)
        self.add_checked(logs)

    def add_checked(self, logs: Iterable[Log]) -> None:
        """Add logs that :meth:`check` has accepted, or that were added before."""
        found: dict[str, Log] = {}
        for log in logs:
            if isinstance(log, Series):
                found[log.column.name] = log
            else:
                found.update(dict.fromkeys(log.names, log))
        self._by_name.update(found)  # in one step: an interrupt comes before or after it

    def check(self, logs: Iterable[Log]) -> None:
        """Check that logs can be added.

        Raises:
            SchemaError: a name is invalid or taken.
        """
        names = names_of(logs)
        check_names(names)
        if len(set(names)) != len(names) or self.has_any(names):
            counts = collections.Counter(names)
            twice = next(n for n in names if counts[n] > 1 or n in self._by_name)
            raise SchemaError(f"The name {twice!r} is used twice. Hint: rename one of them.")

    def __getitem__(self, name: str) -> Log:
        found = self._by_name.get(name)
        if found is None:
            raise unknown_name(name, self._by_name)
        return found

    def has_any(self, names: Iterable[str]) -> bool:
        """Return whether any of these names is declared."""
        return not self._by_name.keys().isdisjoint(names)

    def find(self, name: str) -> Log | None:
        """Return the table or series of a name, or None."""
        return self._by_name.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Schema({', '.join(f'{n}: {self.column(n)}' for n in self)})"

    def column(self, name: str) -> Column:
        """Return the column of a name."""
        log = self[name]
        if isinstance(log, Series):
            return log.column
        return next(column for column in log.columns if column.name == name)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table once."""
        return tuple(dict.fromkeys(x for x in self._by_name.values() if isinstance(x, Table)))

    @property
    def series(self) -> tuple[Series, ...]:
        """Every series."""
        return tuple(log for log in self._by_name.values() if isinstance(log, Series))


def names_of(logs: Iterable[Log]) -> list[str]:
    """Return the names of all logs."""
    found: list[str] = []
    for log in logs:
        if isinstance(log, Series):
            found.append(log.column.name)
        else:
            found += log.names
    return found


def check_names(names: Iterable[str]) -> None:
    """Check many names; see :func:`check_name`."""
    names = list(names)
    try:
        joined = "\n".join(names)
        plain = all(names) and max(map(len, names), default=0) <= MOST_CHARACTERS
        if plain and joined.isascii() and not any(word in joined for word in _SUSPICIOUS):
            return
    except TypeError:  # one is not a string
        pass
    for name in names:
        check_name(name)


def check_name(name: object) -> None:
    """Check that a name can be stored.

    Raises:
        SchemaError: it cannot.
    """
    if not isinstance(name, str) or not name:
        raise SchemaError(f"A name must be a non-empty string; got {name!r}")
    if name.startswith(RESERVED) or name == "__metadata__":
        raise SchemaError(
            f"The name {name!r} is reserved. "
            f"Hint: choose one that does not begin with {RESERVED!r}."
        )
    if len(name) > MOST_CHARACTERS:
        raise SchemaError(
            f"The name {name[:40]!r}... has {len(name)} characters, more than {MOST_CHARACTERS}. "
            "Hint: keep long texts in meta or attrs."
        )
    if name.isascii():
        return
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"The name {name!r} is not valid Unicode text: {error}") from error


def check_axes(logs: Iterable[Log]) -> None:
    """Check that the names of step axes can be stored.

    Raises:
        SchemaError: one cannot.
    """
    seen: set[tuple[Column, ...]] = set()
    last: tuple[Column, ...] | None = None
    for log in logs:
        if isinstance(log, Series) and log.steps is not last and log.steps not in seen:
            last = log.steps
            seen.add(last)
            for axis in log.axes:
                try:
                    check_name(axis)
                except SchemaError as error:
                    raise SchemaError(f"A step axis of {log.column.name!r}: {error}") from error
            if len(set(log.axes)) != len(log.axes):
                raise SchemaError(f"{log.column.name!r} has the same step axis twice: {log.axes}")


def unknown_name(
    name: str,
    known: Iterable[str],
    why: str = "",
    lacks: str = "This store has no log named",
) -> UnknownNameError:
    """Return the error for a name that the store does not have.

    Args:
        name: the name.
        known: the existing names.
        why: a sentence that says why a new name is refused.
        lacks: the beginning of the sentence that ends with the name.
    """
    because = f" {why}" if why else ""
    return UnknownNameError(f"{lacks} {name!r}.{because} {did_you_mean(name, known)}")
