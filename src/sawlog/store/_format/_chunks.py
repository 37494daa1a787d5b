"""Chunks: the rows of one table or the entries of one series in a segment, and their tensors.

Before a segment is written, and when it is read, the same checks run: every tensor of a chunk
exists, has the right dtype, and has the number of rows that the chunk declares.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sawlog.store._format import _parse
from sawlog.store._format._empty_items import Typed

_INT64, _UINT64 = np.dtype("<i8"), np.dtype("<u8")
_UINT8, _BOOL = np.dtype("u1"), np.dtype(bool)
_TEXT_PARTS = ("text", "ends", "hash")
_MANY = 100  # chunks; from here on they are checked together
_make = tuple.__new__  # builds a named tuple without the cost of its constructor


def ids_name(table: Iterable[str], part: str = "") -> str:
    """Return the name of the tensor with the ids of a table, or with a part of them."""
    first = next(iter(table))
    return f"sawlog.ids.{part}/{first}" if part else f"sawlog.ids/{first}"


def step_name(axis: str, series: str) -> str:
    """Return the name of the tensor with a step axis of a series.

    ``%`` and ``/`` in the axis are escaped as ``%25`` and ``%2F``, so that the axis ends at the
    first ``/``.

    >>> step_name("epoch/train", "loss"), step_name("epoch", "train/loss")
    ('sawlog.step/epoch%2Ftrain/loss', 'sawlog.step/epoch/train/loss')
    """
    return _step_prefix(axis) + series


@functools.lru_cache(1024)
def _step_prefix(axis: str) -> str:
    axis = axis.replace("%", "%25").replace("/", "%2F")
    return f"sawlog.step/{axis}/"


def step_name_1(axis: str, series: str) -> str:
    """Return the name in version 1 of the format, which did not escape the axis."""
    return f"sawlog.step/{axis}/{series}"


def mask_name(series: str) -> str:
    """Return the name of the tensor with the mask of a series."""
    return f"sawlog.mask/{series}"


class TableChunk(NamedTuple):
    """Rows of a table, with ids of one kind."""

    names: tuple[str, ...]
    rows: int
    ids: str

    @property
    def first(self) -> str:
        """The name that identifies the table."""
        return self.names[0]

    @property
    def notes(self) -> tuple[tuple[int, dict[str, Any]], ...]:
        """Like those of a series without attrs."""
        return ((self.rows, {}),) if self.rows else ()

    @property
    def tensors(self) -> list[str]:
        """The names of all its tensors."""
        parts = ("",) if self.ids == "int" else _TEXT_PARTS
        return [*self.names, *(ids_name(self.names, part) for part in parts)]

    def check(self, tensors: Mapping[str, Typed]) -> None:
        """Check that the tensors exist and have these rows."""
        for name in self.names:
            _rows_of(tensors, name, self.rows)
        if self.ids == "int":
            _exactly(tensors, ids_name(self.names), _INT64, (self.rows,))
            return
        _exactly(tensors, ids_name(self.names, "ends"), _INT64, (self.rows,))
        _exactly(tensors, ids_name(self.names, "hash"), _UINT64, (self.rows,))
        text = _tensor(tensors, ids_name(self.names, "text"))
        if text.dtype != _UINT8 or len(text.shape) != 1:
            _parse.fail(f"the ids of {self.names[0]!r} are not bytes")


class SeriesChunk(NamedTuple):
    """Entries of a series: its step axes, whether it has a mask, and attrs for runs of entries."""

    name: str
    rows: int
    steps: tuple[str, ...]
    mask: bool = False
    attrs: tuple[tuple[int, dict[str, Any]], ...] | None = None

    @property
    def first(self) -> str:
        """The name of the series."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its one name."""
        return (self.name,)

    @property
    def tensors(self) -> list[str]:
        """The names of all its tensors."""
        mask = [mask_name(self.name)] if self.mask else []
        return [self.name, *(step_name(axis, self.name) for axis in self.steps), *mask]

    @property
    def notes(self) -> tuple[tuple[int, dict[str, Any]], ...]:
        """Runs of entries with their attrs, which may be empty."""
        if self.attrs is not None:
            return self.attrs
        return ((self.rows, {}),) if self.rows else ()

    def check(self, tensors: Mapping[str, Typed]) -> None:
        """Check that the tensors exist and have these entries."""
        name, rows = self.name, self.rows
        values = _rows_of(tensors, name, rows)
        for axis in self.steps:
            _rows_of(tensors, step_name(axis, name), rows)
        if self.mask:
            mask = _rows_of(tensors, mask_name(self.name), self.rows)
            if mask.dtype != _BOOL or values.shape[: len(mask.shape)] != mask.shape:
                _parse.fail(f"the mask of {self.name!r} does not match its values")


Chunk = TableChunk | SeriesChunk


def _tensor(tensors: Mapping[str, Typed], name: str) -> Typed:
    found = tensors.get(name)
    if found is None:
        _parse.fail(f"the tensor {_parse.shown(name)} is missing")
    return found


def _rows_of(tensors: Mapping[str, Typed], name: str, rows: int) -> Typed:
    found = tensors.get(name)
    if found is None:
        _parse.fail(f"the tensor {_parse.shown(name)} is missing")
    shape = found.shape
    if not shape or shape[0] != rows:
        _parse.fail(f"{_parse.shown(name)} has the shape {list(found.shape)}, not {rows} rows")
    return found


def _exactly(
    tensors: Mapping[str, Typed], name: str, dtype: np.dtype, shape: tuple[int, ...]
) -> None:
    found = _tensor(tensors, name)
    if found.dtype != dtype or found.shape != shape:
        _parse.fail(
            f"{_parse.shown(name)} is {found.dtype}{list(found.shape)}, not {dtype}{list(shape)}"
        )


def parse_all(
    value: Any, groups: Mapping[str, tuple[tuple[str, ...], str]] | None = None
) -> tuple[Chunk, ...]:
    """Parse the chunks of a segment; ``groups`` has the names of each group of tensors.

    Raises:
        Malformed: the value is invalid.
    """
    listed = _parse.sequence(value, "'chunks'")
    if groups:
        of_groups = [each for each in listed if type(each) is dict and "group" in each]
        rest = [each for each in listed if type(each) is not dict or "group" not in each]
        return (*_of_groups(of_groups, groups), *parse_all(rest))
    if len(listed) > _MANY and (found := _all_plain(listed)) is not None:
        return found
    axes: dict[tuple[str, ...], tuple[str, ...]] = {}
    return tuple([_plain_series(each, axes) or parse(each) for each in listed])


def _of_groups(
    listed: list[dict[str, Any]], groups: Mapping[str, tuple[tuple[str, ...], str]]
) -> list[SeriesChunk]:
    """Return a chunk for each series of the groups."""
    found: list[SeriesChunk] = []
    used: set[str] = set()
    for each in listed:
        group = _parse.text(each["group"], "'group' of a chunk")
        names, prefix = groups.get(group, ((), ""))
        if group in used or not names or prefix:
            _parse.fail(f"a chunk cannot be of the group {_parse.shown(group)}")
        used.add(group)
        rows = _parse.integer(_parse.field(each, "rows"), "'rows' of a chunk")
        steps = _parse.texts(_parse.field(each, "steps"), "'steps' of a chunk")
        found += [_make(SeriesChunk, (name, rows, steps, False, None)) for name in names]
    return found


def _all_plain(listed: list[Any]) -> tuple[SeriesChunk, ...] | None:
    """Parse all chunks at once if :func:`_plain_series` accepts each of them, else return None."""
    if {*map(type, listed)} != {dict} or {*map(len, listed)} != {3}:
        return None
    try:
        names = [chunk["series"] for chunk in listed]
        rows = [chunk["rows"] for chunk in listed]
        steps = [tuple(chunk["steps"]) for chunk in listed if type(chunk["steps"]) is list]
        axes = {key: _parse.texts(list(key), "'steps' of a chunk") for key in {*steps}}
    except (KeyError, TypeError, _parse.Malformed):
        return None
    if {*map(type, names)} != {str} or {*map(type, rows)} != {int} or len(steps) != len(names):
        return None
    if not all(names) or not "".join(names).isascii() or min(rows) < 0 or max(rows) > _parse.MOST:
        return None
    parts = zip(names, rows, steps, strict=True)
    return tuple([_make(SeriesChunk, (name, n, axes[own], False, None)) for name, n, own in parts])


def _plain_series(value: Any, known: dict[tuple[str, ...], tuple[str, ...]]) -> SeriesChunk | None:
    """Fast path of :func:`parse` for series without mask and attrs, of which there may be many.

    Accepts nothing that :func:`parse` refuses. ``known`` caches the parsed step axes.
    """
    if type(value) is not dict or len(value) != 3:
        return None
    name, rows, steps = value.get("series"), value.get("rows"), value.get("steps")
    if type(name) is not str or type(rows) is not int or type(steps) is not list:
        return None
    if not name or not name.isascii() or not 0 <= rows <= _parse.MOST:
        return None
    if len(steps) == 1 and type(steps[0]) is str:
        axes = known.get((steps[0],))
        if axes is None:
            axes = known[(steps[0],)] = _parse.texts(steps, "'steps' of a chunk")
    else:
        axes = _parse.texts(steps, "'steps' of a chunk")
    return SeriesChunk(name, rows, axes)


def parse(value: Any) -> Chunk:
    """Parse a chunk (FORMAT.md, section 4).

    Raises:
        Malformed: the value is invalid.
    """
    said = _parse.mapping(value, "a chunk")
    if ("table" in said) == ("series" in said):
        _parse.fail("a chunk must have either 'table' or 'series'")
    rows = _parse.integer(_parse.field(said, "rows"), "'rows' of a chunk")
    if "table" in said:
        names = _parse.texts(said["table"], "'table' of a chunk")
        if not names or "" in names:
            _parse.fail("'table' of a chunk has no name")
        return TableChunk(names, rows, _parse.choice(said.get("ids"), "'ids'", ("int", "str")))
    name = _parse.name(said["series"], "'series' of a chunk")
    steps = _parse.texts(_parse.field(said, "steps"), "'steps' of a chunk")
    mask = _parse.flag(said.get("mask", False), "'mask' of a chunk")
    attrs = _attrs(said["attrs"], rows) if "attrs" in said else None
    return SeriesChunk(name, rows, steps, mask, attrs)


def _attrs(value: Any, rows: int) -> tuple[tuple[int, dict[str, Any]], ...]:
    runs = []
    for each in _parse.sequence(value, "'attrs' of a chunk"):
        if len(_parse.sequence(each, "a run of 'attrs'")) != 2:
            _parse.fail("a run of 'attrs' is not [rows, object]")
        count = _parse.integer(each[0], "a run of 'attrs'", 0, rows)
        runs.append((count, _parse.notes(each[1], "'attrs'")))
    if sum(count for count, _ in runs) != rows:
        _parse.fail(f"'attrs' do not add up to {rows} entries")
    return tuple(runs)


def check_all(chunks: Sequence[Chunk], tensors: Mapping[str, Typed]) -> None:
    """Refuse chunks that do not match their tensors, or that share a name."""
    names: list[str] = []
    plain: dict[tuple[str, ...], list[SeriesChunk]] = {}
    for chunk in chunks:
        if isinstance(chunk, SeriesChunk) and not chunk.mask:
            plain.setdefault(chunk.steps, []).append(chunk)
        else:
            chunk.check(tensors)
            names += chunk.names
    for steps, alike in plain.items():
        own = [chunk.name for chunk in alike]
        if len(own) < _MANY or not _all_have_rows(own, alike, steps, tensors):
            for chunk in alike:
                chunk.check(tensors)
        names += own
    if len(set(names)) != len(names):
        twice = next(name for name, count in collections.Counter(names).items() if count > 1)
        _parse.fail(f"{_parse.shown(twice)} is in two chunks")


def _all_have_rows(
    names: list[str],
    chunks: list[SeriesChunk],
    steps: tuple[str, ...],
    tensors: Mapping[str, Typed],
) -> bool:
    """Return whether all values and steps of these series exist, with the right number of rows.

    If not, :meth:`SeriesChunk.check` raises the error.
    """
    rows = [(chunk.rows,) for chunk in chunks]
    try:
        for prefix in ("", *map(_step_prefix, steps)):
            if [tensors[prefix + name].shape[:1] for name in names] != rows:
                return False
    except KeyError:
        return False
    return True


def renamed(chunks: Iterable[Chunk]) -> dict[str, str]:
    """Return the current names of version 1 step tensors, where they differ.

    Raises:
        Malformed: two series share a tensor, which has the values of only one of them.
    """
    owners: dict[str, str] = {}
    for chunk in chunks:
        if isinstance(chunk, SeriesChunk):
            for axis in chunk.steps:
                old, new = step_name_1(axis, chunk.name), step_name(axis, chunk.name)
                if owners.setdefault(old, new) != new:
                    _parse.fail(f"two series share the tensor {_parse.shown(old)}")
    return {old: new for old, new in owners.items() if old != new}
