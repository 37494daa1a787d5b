"""``Writer``: what a program gives is checked at once, kept, and published in the background."""

from __future__ import annotations

import _thread
import math
import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import numpy as np

from sawlog.errors import (
    ArgumentError,
    DuplicateIdError,
    NanError,
    SchemaError,
    StoreClosedError,
    StoreError,
)
from sawlog.records import Entries, Records
from sawlog.store import _ids
from sawlog.store._accepted import Call
from sawlog.store._catalog import Catalog
from sawlog.store._files import check_json, new_name
from sawlog.store._layout import Folder, Identity
from sawlog.store._many import many_objects
from sawlog.store._match import (
    Rows,
    all_series,
    as_array,
    as_entry,
    as_series,
    entry_values,
    is_nan,
    plain_entries,
    rows_of,
    table_of,
)
from sawlog.store._pipeline import Pipeline
from sawlog.store._removal import InUse
from sawlog.store._schema import Log, Schema, Series, Table
from sawlog.store._schema_files import merge_schema
from sawlog.store._unmade import Unmade
from sawlog.store._upkeep import Upkeep, left_over

T = TypeVar("T")
_NO_NOTES: Mapping[str, Any] = MappingProxyType({})


class Writer:
    """Writes into a store. Made by :func:`sawlog.store.create` and ``open(path, "append")``.

    Everything is checked when it is given, and either accepted whole or refused whole. Accepted
    data is published in segments, by threads in the background, and is safe on disk at the latest
    when :meth:`flush` or :meth:`close` returns. Several threads may share one writer; every
    process needs its own.
    """

    def __init__(
        self,
        folder: Folder,
        identity: Identity,
        catalog: Catalog,
        *,
        segment_bytes: int = 32 << 20,
        queue: int = 2,
        interval: float | None = 1.0,
        merge: bool = True,
        in_use: InUse | None = None,
    ) -> None:
        self._folder, self._identity, self._catalog = folder, identity, catalog
        self._config = identity.config
        check_options(segment_bytes, queue, interval)
        self._segment_bytes = max(1, int(segment_bytes))
        self._id = new_name()
        self._pipeline = Pipeline(
            folder,
            identity.id,
            self._id,
            catalog.clock,
            queue=max(1, int(queue)),
            interval=interval,
            segment_bytes=self._segment_bytes,
            in_use=in_use,
            upkeep=Upkeep(folder, identity) if merge else None,
            small=left_over(catalog.segments) if merge else 0,
        )
        self._known: dict[str, tuple[_ids.IdSet, set[str]]] = {}
        self._fast: dict[str, Series] = {}
        self._process = os.getpid()
        # A writer that the program forgets, or leaves open at its end, still publishes.
        self._finalizer = weakref.finalize(self, _finish_quietly, self._pipeline, self._process)

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._folder.path

    @property
    def id(self) -> str:
        """The name of this writer, which its segments carry."""
        return self._id

    @property
    def schema(self) -> Schema:
        """The names that are declared so far."""
        return self._catalog.schema

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted when the store was created."""
        return self._identity.meta

    @property
    def published(self) -> int:
        """How many segments this writer has published."""
        return self._pipeline.published

    def __repr__(self) -> str:
        state = "closed" if self._pipeline.closed else f"{self.published} segments published"
        return f"Writer({str(self.path)!r}, {state})"

    def _check_process(self) -> None:  # before anything that a fork may have caught in the middle
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"This writer of {self.path} belongs to process {self._process}, and this is "
                f"process {os.getpid()}. Hint: open one in each process, after the fork: "
                'sawlog.store.open(path, "append"); they may write at the same time.'
            )

    def _check_open(self, closed: bool) -> None:
        if closed:
            raise StoreClosedError(
                f"This writer of {self.path} is closed. "
                'Hint: sawlog.store.open(path, "append") goes on where it stopped.'
            )

    def _accept(self, stage: Callable[[Call], T]) -> T:
        """Have a call staged, and accept it in one step; again if another came in between."""
        self._check_process()
        with self._pipeline.turn.taken() as nested:
            while True:
                before = self._pipeline.state
                self._check_open(self._pipeline.closed)
                self._pipeline.raise_failure()
                call = self._pipeline.begin(nested)
                out = stage(call)
                if call.commit():
                    break
        self._pipeline.accepted(before)
        return out

    # -- rows -------------------------------------------------------------------------------------

    def append(self, ids: Any, values: Mapping[str, Any]) -> int:
        """Add one row for each example id, with a value for every name of a table.

        The first call fixes the names that go together, their dtypes and shapes. Returns how many
        rows were taken: all of them, but for known ids where the store keeps the first.

        Raises:
            SchemaError, UnknownNameError: the names, dtypes or shapes are not those of before.
            DuplicateIdError: an id is there already and the store refuses that.
            NanError: a value is not a number and the store refuses that.
            StoreWriteError: an earlier write failed in the background.
        """
        self._check_process()
        rows = rows_of(ids, values)
        return self._accept(lambda call: self._stage_rows(call, rows))

    def _stage_rows(self, call: Call, rows: Rows) -> int:
        table = table_of(self.schema, rows)
        if not len(rows.ids):
            return 0  # says nothing about the ids to come
        if table is None:
            table = self._declare_table(rows)
        self._check_nan(rows.values)
        known = self._known_ids(table)
        rows = self._without_known(table, rows, known)
        call.know(known, rows.ids)
        self._put_rows(call, table, rows)
        return len(rows.ids)

    def _declare_table(self, rows: Rows) -> Table:
        def wanted(schema: Schema) -> list[Log]:
            return [] if table_of(schema, rows) else [rows.as_table(schema, self._config.fixed)]

        self._catalog.declare(wanted)
        table = table_of(self.schema, rows)
        assert table is not None
        return table

    def _known_ids(self, table: Table) -> _ids.IdSet:
        """The ids of a table that are published, as far as looked, or accepted here."""
        key = table.names[0]
        if key not in self._known:
            self._look(table, _ids.IdSet(table.ids), set())
        return self._known[key][0]

    def _look(self, table: Table, known: _ids.IdSet, looked: set[str]) -> None:
        """Take in the ids of segments that were not looked at."""
        for segment, ids in self._catalog.ids(table, without=looked, writer=self._id):
            known.add(ids)
            looked.add(segment)
        self._known[table.names[0]] = (known, looked)

    def _without_known(self, table: Table, rows: Rows, known: _ids.IdSet) -> Rows:
        if self._config.duplicates == "replace":
            return rows
        fresh = _ids.first_of_each(rows.ids) & ~known.has(rows.ids)
        if not fresh.all():
            if self._config.duplicates == "error":
                raise self._duplicates(table, rows.take(~fresh).ids)
            rows = rows.take(fresh)
        return rows

    def _duplicates(self, table: Table, ids: Any) -> DuplicateIdError:
        return DuplicateIdError(
            f"{len(ids)} of these ids are in {self.path} under {table.names[0]!r} already, or "
            f"twice in this call: {_ids.some(ids)}. Nothing of the call was taken. Hint: "
            "writer.missing(ids) says which are not there; create(..., duplicates='first') skips "
            "known ids, 'replace' lets the new row count."
        )

    def _put_rows(self, call: Call, table: Table, rows: Rows) -> None:
        row_bytes = max(1, table.row_bytes + 8)
        most, start, total = _rows_of(self._segment_bytes // row_bytes), 0, len(rows.ids)
        full = most * row_bytes
        if call.nbytes + (total + 1) * row_bytes > full:
            self._pipeline.wait_for_room(total * row_bytes)
        while start < total:
            room = max(1, (full - call.nbytes) // row_bytes)
            part = slice(start, min(total, start + room))
            values = {name: array[part] for name, array in rows.values.items()}
            call.chunk(table).add_rows(call.key, rows.ids[part], values, most)
            call.count((part.stop - start) * row_bytes)
            start = part.stop
            if call.nbytes + row_bytes > full:
                call.seal()

    def missing(self, ids: Any, name: str | None = None) -> Any:
        """Those of ``ids`` that are not there yet, in the order given.

        There is what anybody published until now, and what this writer accepted. ``name`` says
        which table is meant, where there are several.

        Raises:
            UnknownNameError: there is no such table.
        """
        self._check_process()
        wanted = _ids.normal(ids)
        with self._pipeline.turn.taken():
            self._check_open(self._pipeline.closed)
            self._pipeline.raise_failure()
            self._pipeline.state.added.settle()
            there = self._there(wanted, name)
        if isinstance(wanted, list):
            return [text for text, found in zip(wanted, there, strict=True) if not found]
        return wanted[~there]

    def _there(self, wanted: Any, name: str | None) -> np.ndarray:
        """For each of these ids whether it is there."""
        self._catalog.refresh()
        if not self.schema.tables and name is None:
            return np.zeros(len(wanted), bool)
        table = self._catalog.table(name)
        if not len(wanted):
            return np.zeros(0, bool)
        if _ids.kind_of(wanted) != table.ids:
            raise SchemaError(
                f"{table.names[0]!r} has ids of the kind {table.ids!r}, and these are "
                f"{_ids.some(wanted)}. Hint: ask with the ids that were written."
            )
        self._known_ids(table)
        self._look(table, *self._known[table.names[0]])
        return self._known[table.names[0]][0].has(wanted)

    # -- entries ----------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], /, **steps: Any) -> None:
        """Add one entry to each of the names, with the same steps.

        ``writer.log({"loss": 0.3}, step=7)``. The first call with a name fixes its dtype, shape
        and step axes.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        self._check_process()
        with many_objects(len(values) if isinstance(values, Mapping) else 0):
            arrays = entry_values(self._fast, values)
            at = {axis: as_entry(axis, step)[None] for axis, step in steps.items()}
            self._write({name: _one_entry(array[None], at) for name, array in arrays.items()})

    def extend(self, values: Mapping[str, Any], /, **steps: Any) -> None:
        """Add many entries to each of the names: arrays ``[n, ...]``, and steps ``[n, ...]``.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        if not isinstance(values, Mapping):
            raise SchemaError(f"extend(values) takes a dict of arrays by name, not {values!r:.80}")
        at = {axis: as_array(axis, step) for axis, step in steps.items()}
        self.write({name: Entries(as_array(name, x), at) for name, x in values.items()})

    def write(self, records: Records | Mapping[str, Entries]) -> None:
        """Add the entries of every name, with their masks and notes, and publish them together.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        self._check_process()
        self._write({name: plain_entries(name, entries) for name, entries in records.items()})

    def _write(self, records: dict[str, Entries]) -> None:
        with many_objects(len(records)):
            self._accept(lambda call: self._stage_entries(call, records))

    def _stage_entries(self, call: Call, records: dict[str, Entries]) -> None:
        for name, entries in records.items():
            if entries.attrs:
                check_json(dict(entries.attrs), f"attrs of {name!r}")
        found = all_series(self.schema, records)
        if None in found.values():
            self._declare_series(records)
            found = all_series(self.schema, records)
        if self._config.nan != "allow":
            self._check_nan({name: entries.values for name, entries in records.items()})
        self._put_entries(call, [(s, records[n]) for n, s in found.items() if s is not None])
        self._fast.update((n, s) for n, s in found.items() if s is not None)

    def _declare_series(self, records: dict[str, Entries]) -> None:
        def wanted(schema: Schema) -> list[Log]:
            new = [name for name, found in all_series(schema, records).items() if found is None]
            return as_series(schema, {name: records[name] for name in new}, self._config.fixed)

        self._catalog.declare(wanted)

    def _put_entries(self, call: Call, found: list[tuple[Series, Entries]]) -> None:
        """The entries of one call go into one segment: they are published together."""
        sizes = _bytes_per_entry(found)
        total = sum(n * len(entries) for n, (_, entries) in zip(sizes, found, strict=True))
        if call.nbytes + total + 1 > self._segment_bytes:
            self._pipeline.wait_for_room(total)
            if call.nbytes + total > self._segment_bytes:
                call.seal()
        masked = [(s, entries.mask) for s, entries in found if entries.mask is not None]
        if not all(call.chunk(s).takes(call.key, mask) for s, mask in masked):
            call.seal()
        for size, (series, entries) in zip(sizes, found, strict=True):
            if len(entries) or entries.attrs:
                most = max(1, self._segment_bytes // size)
                call.chunk(series).add_entries(call.key, entries, most)
        call.count(total)
        if call.nbytes + 1 > self._segment_bytes:
            call.seal()

    def _check_nan(self, values: Mapping[str, np.ndarray | Unmade]) -> None:
        if self._config.nan == "allow":
            return
        for name, array in values.items():
            if array.dtype.kind in "fcVmM":
                self._check_nan_of(name, np.asarray(array))

    def _check_nan_of(self, name: str, array: np.ndarray) -> None:
        bad = is_nan(array)
        if bad is None or not bad.any():
            return
        rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))
        said = f"{name!r} has values that are not numbers (NaN) in {len(rows)} of {len(array)} rows"
        if self._config.nan == "error":
            raise NanError(
                f"{said}, the first in row {rows[0]} of this call. Nothing of the call was taken. "
                "Hint: find where they come from, or create the store with nan='allow'."
            )
        warnings.warn(f"{said} (store {self.path})", stacklevel=4)

    # -- publishing -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything accepted so far is on disk. What failed before is tried again.

        Raises:
            StoreWriteError: the disk refuses; nothing is given up, and flush can be called again.
        """
        self._check_process()
        self._check_open(self._pipeline.closed)
        self._pipeline.flush()

    def close(self) -> None:
        """Flush, and end. A second call does nothing.

        Raises:
            StoreWriteError: the disk refuses. The writer is then still open.
        """
        if os.getpid() != self._process or not self._finalizer.alive:
            return
        self._pipeline.finish()
        self._finalizer.detach()
        merge_schema(self._folder)

    def fail(self) -> None:
        """Note, on :meth:`close`, that what is logged came to a bad end; see ``Reader.failed``."""
        self._pipeline.failed = True

    def abort(self) -> None:
        """End without publishing what is pending, as if the process had been killed."""
        if os.getpid() == self._process:
            self._finalizer.detach()
            self._pipeline.stop()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail()
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            error.add_note(f"Besides, the store could not be closed: {failure}")

    def __reduce__(self) -> Any:
        raise TypeError(
            "A writer cannot be sent to another process. Hint: send its path, and open one there: "
            'sawlog.store.open(path, "append")'
        )


def check_options(segment_bytes: Any, queue: Any, interval: Any) -> None:
    """Refuse options that are no numbers.

    Raises:
        ArgumentError: saying which.
    """
    for option, value in (("segment_bytes", segment_bytes), ("queue", queue)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer)):
            raise ArgumentError(f"{option} is a number, not {value!r:.80}")
        if not math.isfinite(value):
            raise ArgumentError(f"{option} is a finite number, not {value!r}")
    if interval is None:
        return
    if isinstance(interval, bool) or not isinstance(interval, (int, float, np.number)):
        raise ArgumentError(f"interval is a number of seconds, or None, not {interval!r:.80}")
    if math.isnan(interval):
        raise ArgumentError("interval is a number of seconds, or None, not NaN")


def _rows_of(fitting: int) -> int:
    """How many of the rows that fit into a file go there: eights, which matrix products like."""
    return max(1, fitting if fitting < 64 else fitting // 8 * 8)


def _one_entry(values: np.ndarray, steps: Mapping[str, np.ndarray]) -> Entries:
    """Entries of one value and one of each step, which go together: there may be very many."""
    made = object.__new__(Entries)
    parts = made.__dict__
    parts["values"], parts["steps"], parts["mask"], parts["attrs"] = values, steps, None, _NO_NOTES
    return made


def _bytes_per_entry(found: list[tuple[Series, Entries]]) -> list[int]:
    """The bytes of one entry of each."""
    known: dict[tuple[Any, ...], int] = {}
    out = []
    for series, entries in found:
        column = series.column
        key = (id(column.dtype), column.shape, id(series.steps))
        size = known.get(key)
        if size is None:
            size = known[key] = column.row_bytes + sum([step.row_bytes for step in series.steps])
        out.append(max(1, size + (0 if entries.mask is None else entries.mask[:1].nbytes)))
    return out


def _finish_quietly(pipeline: Pipeline, process: int) -> None:
    """At the end of the program or of the writer's life, when nobody can be told any more."""
    if os.getpid() != process:
        return
    if pipeline.is_here:  # the garbage collector may run anywhere
        _thread.start_new_thread(_finish_quietly, (pipeline, process))
        return
    try:
        pipeline.finish()
    except StoreError as error:
        warnings.warn(f"A store was not closed, and closing it now failed: {error}", stacklevel=2)
        pipeline.stop()
