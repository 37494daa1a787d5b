"""``Writer``: check what the program logs, buffer it, and publish it in the background."""

from __future__ import annotations

import _thread
import functools
import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sawlog import _validate
from sawlog._atomic import new_name
from sawlog._lifecycle import CloseOnExit, Stage, at_exit, is_ending
from sawlog.errors import SchemaError, StoreClosedError, StoreError
from sawlog.records import Entries, Records
from sawlog.store._format import _ids
from sawlog.store._format._layout import Folder, Identity
from sawlog.store._format._schema import Schema
from sawlog.store._format._schema_files import merge_schema
from sawlog.store._format._writer_notes import MOST_ERROR
from sawlog.store._gc_pause import paused_gc
from sawlog.store._maintenance._merge_small import SmallSegmentMerger, due_at_start
from sawlog.store._maintenance._remove import InUse
from sawlog.store._reading._catalog import Catalog
from sawlog.store._writing._accepted import WriterCall
from sawlog.store._writing._pipeline import Pipeline
from sawlog.store._writing._stage_entries import EntryStaging, one_entry
from sawlog.store._writing._stage_rows import RowStaging
from sawlog.store._writing._validate_write import (
    as_array,
    entry_values,
    plain_entries,
    rows_of,
    shared_step,
)

T = TypeVar("T")


class Writer(CloseOnExit):
    """Writes to a store. Created by :func:`sawlog.store.create` and ``open(path, "append")``.

    Every call is checked at once, and accepted or refused as a whole. Background threads publish
    accepted data in segments. The data is durable at the latest when :meth:`flush` or :meth:`close`
    returns. Several threads may share a writer; each process needs its own.
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
        check_options(segment_bytes, queue, interval)
        size = max(1, int(segment_bytes))
        self._id = new_name()
        self._pipeline = Pipeline(
            folder,
            identity.id,
            self._id,
            catalog.clock,
            queue=max(1, int(queue)),
            interval=interval,
            segment_bytes=size,
            in_use=in_use,
            merger=SmallSegmentMerger(folder, identity) if merge else None,
            small=due_at_start(catalog.segments) if merge else 0,
        )
        parts = (catalog, identity.config, self._pipeline)
        self._rows = RowStaging(*parts, writer=self._id, path=self.path, segment_bytes=size)
        self._entries = EntryStaging(*parts, path=self.path, segment_bytes=size)
        self._process = os.getpid()
        self._finish_when_forgotten()
        self._pipeline.report_open()

    def _finish_when_forgotten(self) -> None:
        """Publish accepted data if the writer is garbage collected, or open at program exit."""
        cancel: list[Callable[[], None]] = []
        self._finalizer = weakref.finalize(
            self, _finish_quietly, self._pipeline, self._process, cancel
        )
        self._finalizer.atexit = False
        self._cancel = cancel
        cancel.append(at_exit(self._finalizer, Stage.STORES))

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._folder.path

    @property
    def id(self) -> str:
        """The name of this writer, which is part of the names of its segments."""
        return self._id

    @property
    def schema(self) -> Schema:
        """The tables and series that are declared so far, by name."""
        return self._catalog.schema

    @property
    def meta(self) -> dict[str, Any]:
        """The ``meta`` that the store was created with."""
        return self._identity.meta

    @property
    def published(self) -> int:
        """The number of segments that this writer has published."""
        return self._pipeline.published

    def __repr__(self) -> str:
        state = "closed" if self._pipeline.closed else f"{self.published} segments published"
        return f"Writer({str(self.path)!r}, {state})"

    def _check_process(self) -> None:
        # Called before any lock is taken: a fork may have copied one in its locked state.
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"This writer of {self.path} was opened in process {self._process}, and this is "
                f"process {os.getpid()}. Hint: open one in each process, after the fork: "
                'sawlog.store.open(path, "append"); they may write at the same time.'
            )

    def _check_open(self, closed: bool) -> None:
        if closed:
            raise StoreClosedError(
                f"This writer of {self.path} is closed. "
                'Hint: sawlog.store.open(path, "append") continues the store.'
            )

    def _accept(self, stage: Callable[[WriterCall], T]) -> T:
        """Stage a call and commit it in one step; stage again if another call was committed."""
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

        The first call fixes which names form the table, and their dtypes and shapes.

        Returns:
            The number of rows that were added. It is less than ``len(ids)`` only if the store was
            created with ``duplicates="first"``, which skips known ids.

        Raises:
            SchemaError, UnknownNameError: names, dtypes or shapes differ from the table's.
            DuplicateIdError: an id is stored already, and the store has ``duplicates="error"``.
            NanError: a value is NaN, and the store has ``nan="error"``.
            StoreWriteError: an earlier write failed in the background.
        """
        self._check_process()
        rows = rows_of(ids, values)
        return self._accept(lambda call: self._rows.stage(call, rows))

    def missing(self, ids: Any, name: str | None = None) -> Any:
        """Return those of ``ids`` that are not stored yet, in the order given.

        Rows count as stored if any writer has published them, or this writer has accepted them.
        If the store has several tables, ``name`` selects one.

        Raises:
            UnknownNameError: the store has no such name.
        """
        self._check_process()
        wanted = _ids.normalize_ids(ids)
        with self._pipeline.turn.taken():
            self._check_open(self._pipeline.closed)
            self._pipeline.raise_failure()
            self._pipeline.state.added.settle()
            stored = self._rows.stored(wanted, name)
        if isinstance(wanted, list):
            return [text for text, found in zip(wanted, stored, strict=True) if not found]
        return wanted[~stored]

    # -- entries ----------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], /, **steps: Any) -> None:
        """Add one entry to each name, all with the same steps.

        ``writer.log({"loss": 0.3}, step=7)``. The first call with a name fixes its dtype, shape
        and step axes.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        self._check_process()
        with paused_gc(len(values) if isinstance(values, Mapping) else 0):
            arrays = entry_values(self._entries.known, values)
            at = {axis: shared_step(axis, step) for axis, step in steps.items()}
            self._write({name: one_entry(array, at) for name, array in arrays.items()})

    def extend(self, values: Mapping[str, Any], /, **steps: Any) -> None:
        """Add ``n`` entries to each name: arrays ``[n, ...]``, and steps ``[n, ...]``.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        if not isinstance(values, Mapping):
            raise SchemaError(f"extend(values) takes a dict of arrays by name, not {values!r:.80}")
        at = {axis: as_array(axis, step) for axis, step in steps.items()}
        self.write({name: Entries(as_array(name, x), at) for name, x in values.items()})

    def write(self, records: Records | Mapping[str, Entries]) -> None:
        """Add the entries of every name, with masks and attrs, and publish them together.

        Raises:
            SchemaError, UnknownNameError, NanError, StoreWriteError: as :meth:`append`.
        """
        self._check_process()
        self._write({name: plain_entries(name, entries) for name, entries in records.items()})

    def _write(self, records: dict[str, Entries]) -> None:
        with paused_gc(len(records)):
            self._accept(lambda call: self._entries.stage(call, records))

    # -- publishing -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything accepted so far is on disk; retry what failed before.

        Raises:
            StoreWriteError: writing failed. Nothing accepted is lost: call flush again.
        """
        self._check_process()
        self._check_open(self._pipeline.closed)
        self._pipeline.flush()

    def close(self) -> None:
        """Flush, and close the writer. A second call does nothing.

        Raises:
            StoreWriteError: writing failed. The writer then stays open.
        """
        if os.getpid() != self._process or not self._finalizer.alive:
            return
        self._pipeline.finish()
        self._detach()
        merge_schema(self._folder)

    def fail(self, error: BaseException | None = None) -> None:
        """Mark the program as failed when the writer closes; see ``Reader.failed``.

        Args:
            error: what stopped it, as ``sawlog show`` and pages say; by default the exception that
                is being handled, if any.
        """
        self._pipeline.failed = True
        stopped = error or sys.exception()
        if stopped is not None and not self._pipeline.error:
            kind, text = type(stopped).__name__, str(stopped)
            self._pipeline.error = (f"{kind}: {text}" if text else kind)[:MOST_ERROR]

    def abort(self) -> None:
        """Close without publishing pending data, as if the process had been killed."""
        if os.getpid() == self._process:
            self._detach()
            self._pipeline.stop()

    def _detach(self) -> None:
        self._finalizer.detach()
        _cancel_exit(self._cancel)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A writer cannot be sent to another process. Hint: send its path, and open one there: "
            'sawlog.store.open(path, "append")'
        )


def check_options(segment_bytes: Any, queue: Any, interval: Any) -> None:
    """Check the options of a writer.

    Raises:
        ArgumentError: an option is not a number.
    """
    for option, value in (("segment_bytes", segment_bytes), ("queue", queue)):
        number = isinstance(value, (int, float, np.integer)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            _validate.refuse(option, "a finite number", value)
    if interval is None:
        return
    number = isinstance(interval, (int, float, np.number)) and not isinstance(interval, bool)
    if not number or math.isnan(interval):
        _validate.refuse("interval", "a number of seconds, or None", interval)


def _cancel_exit(cancel: list[Callable[[], None]]) -> None:
    for each in cancel:
        each()


def _finish_quietly(pipeline: Pipeline, process: int, cancel: list[Callable[[], None]]) -> None:
    """Close the pipeline of a writer that was not closed; warn where that fails."""
    if os.getpid() != process:
        return
    if pipeline.is_here:  # the garbage collector may run in one of the pipeline's own threads
        _thread.start_new_thread(_finish_quietly, (pipeline, process, cancel))
        return
    if not is_ending():  # python calls this once: after an interrupt, the end of the program does
        again = functools.partial(_finish_quietly, pipeline, process, [])
        cancel = [*cancel, at_exit(again, Stage.STORES)]
    try:
        pipeline.finish()
    except StoreError as error:
        warnings.warn(f"A store was not closed, and closing it now failed: {error}", stacklevel=2)
        pipeline.stop()
    _cancel_exit(cancel)
