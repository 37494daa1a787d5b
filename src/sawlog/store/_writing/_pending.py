"""Buffers of pending data, one for each table or series.

The ``Extent`` of a buffer defines how many of its rows count. Data behind it was staged by a call
that was interrupted; the next call overwrites it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sawlog.errors import StoreWriteError
from sawlog.records import Entries
from sawlog.store._format._chunks import ids_name, mask_name, step_name
from sawlog.store._format._ids import StringIds
from sawlog.store._format._schema import Series, Table
from sawlog.store._writing._deferred_rows import DeferredRows

SMALL = 1 << 10  # bytes; smaller first arrays are copied without spare room
_LARGE = 1 << 20  # bytes; larger buffers are allocated for a whole segment at once


class Extent(NamedTuple):
    """How much of a buffer counts: rows, attrs, and whether it has a mask."""

    rows: int = 0
    notes: int = 0
    masked: bool = False

    @property
    def empty(self) -> bool:
        """Whether the buffer has neither rows nor attrs."""
        return not self.rows and not self.notes


_EMPTY, _ONE_ROW = Extent(), Extent(1)


class OwnedEntries(Entries):
    """Entries whose small arrays are read-only copies, which buffers keep and never write to."""


_NOTHING_STAGED = (None, _EMPTY, _EMPTY)


class ChunkBuffer:
    """The buffers of one table or series."""

    __slots__ = ("_made", "_notes", "_staged", "_texts", "log")

    def __init__(self, log: Table | Series, arrays: dict[str, np.ndarray] | None = None) -> None:
        self.log = log
        self._made = arrays  # None while it is empty
        self._texts: list[str] | None = None  # string ids
        self._notes: list[tuple[int, str]] | None = None  # the first row, and the attrs as JSON
        self._staged: tuple[object, Extent, Extent] = _NOTHING_STAGED

    def recycled(self) -> ChunkBuffer:
        """Return an empty buffer that reuses the memory."""
        return ChunkBuffer(self.log, None if self._made is None else dict(self._made))

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = self._made
        if arrays is None:
            arrays = self._made = _buffers(self.log)
        return arrays

    # -- how much counts --------------------------------------------------------------------------

    def extent(self, call: object) -> Extent:
        """Return the extent with the additions of ``call``, and without other unsettled ones."""
        by, staged, settled = self._staged
        return staged if by is call else settled

    def settle(self, call: object) -> None:
        """Make the additions of ``call`` permanent."""
        by, staged, _ = self._staged
        if by is call:
            self._staged = (None, staged, staged)

    def _stage(self, call: object, extent: Extent) -> None:
        self._staged = (call, extent, self._staged[2])

    # -- adding -----------------------------------------------------------------------------------

    def add_rows(
        self,
        call: object,
        ids: np.ndarray | list[str],
        values: Mapping[str, np.ndarray | DeferredRows],
        at_most: int,
    ) -> None:
        """Add rows of a table; ``at_most`` is the number of rows of a full segment."""
        before = self.extent(call)
        for name, array in values.items():
            self._put(name, before.rows, array, at_most)
        if isinstance(ids, list):
            if self._texts is None:
                self._texts = []
            del self._texts[before.rows :]
            self._texts += ids
        else:
            self._put(ids_name(self.log.names), before.rows, ids, at_most)
        self._stage(call, before._replace(rows=before.rows + len(ids)))

    def takes(self, call: object, mask: np.ndarray | None) -> bool:
        """Return whether a mask has the same axes as that of the entries in the buffer."""
        name = mask_name(self.log.names[0])
        masked = self.extent(call).masked
        return mask is None or not masked or self._arrays[name].shape[1:] == mask.shape[1:]

    def add_entries(self, call: object, entries: Entries, at_most: int) -> None:
        """Add entries of a series."""
        log = self.log
        assert isinstance(log, Series)
        if self._made is None and entries.mask is None and not entries.attrs:
            made = _copies(log, entries)
            if made is not None:
                self._made = made
                count = len(entries.values)
                extent = _ONE_ROW if count == 1 else Extent(count)
                self._staged = (call, extent, self._staged[2])
                return
        name, before = log.column.name, self.extent(call)
        self._put(name, before.rows, entries.values, at_most)
        for axis, array in entries.steps.items():
            self._put(step_name(axis, name), before.rows, array, at_most)
        masked = self._put_mask(before, entries.mask, len(entries), at_most)
        notes = self._put_note(before, entries.attrs)
        self._stage(call, Extent(before.rows + len(entries), notes, masked))

    def _put(self, name: str, start: int, rows: np.ndarray | DeferredRows, at_most: int) -> None:
        """Copy rows behind the ones that count."""
        array, need = self._arrays[name], start + len(rows)
        if not start and not len(array) and type(rows) is np.ndarray and rows.nbytes < SMALL:
            self._arrays[name] = rows.astype(array.dtype, order="C")
            return
        if need > len(array) or not array.flags.writeable:  # such an array may be in other buffers
            array = _grown(array, start, need, at_most)
            self._arrays[name] = array
        if isinstance(rows, DeferredRows):
            rows.into(array[start:need])
        else:
            array[start:need] = rows

    def _put_mask(self, before: Extent, mask: np.ndarray | None, count: int, at_most: int) -> bool:
        name = mask_name(self.log.names[0])
        if mask is not None and not before.masked:  # the entries before it were all logged
            self._arrays[name] = np.ones((before.rows, *mask.shape[1:]), bool)
        if mask is None and not before.masked:
            return False
        shape = (count, *self._arrays[name].shape[1:])
        self._put(name, before.rows, np.ones(shape, bool) if mask is None else mask, at_most)
        return True

    def _put_note(self, before: Extent, attrs: Mapping[str, Any]) -> int:
        """Add the attrs of entries unless they equal the last ones; return how many attrs count."""
        count = before.notes
        if not attrs and not count:
            return 0
        notes = self._notes
        if notes is None:
            notes = self._notes = []
        del notes[count:]
        if not count and before.rows:
            notes.append((0, "{}"))
        text = json.dumps(dict(attrs))
        if not notes or notes[-1][1] != text:
            notes.append((before.rows, text))
        return len(notes)

    # -- the chunk of a segment -------------------------------------------------------------------

    def describe(self, extent: Extent) -> dict[str, Any]:
        """Return the chunk of a segment's description (FORMAT.md, section 4)."""
        if isinstance(self.log, Table):
            return {"table": list(self.log.names), "rows": extent.rows, "ids": self.log.ids}
        name = self.log.column.name
        said: dict[str, Any] = {"series": name, "rows": extent.rows, "steps": list(self.log.axes)}
        if extent.masked:
            said["mask"] = True
        if extent.notes and self._notes is not None:
            notes = self._notes[: extent.notes]
            ends = [*(start for start, _ in notes[1:]), extent.rows]
            said["attrs"] = [
                [end - start, json.loads(text)]
                for (start, text), end in zip(notes, ends, strict=True)
            ]
        return said

    def tensors(self, extent: Extent) -> dict[str, np.ndarray]:
        """Return the tensors of the chunk, with the rows of the extent."""
        mask = mask_name(self.log.names[0])
        out = {
            name: array[: extent.rows]
            for name, array in self._arrays.items()
            if name != mask or extent.masked
        }
        if isinstance(self.log, Table) and self.log.ids == "str":
            texts = StringIds.of((self._texts or [])[: extent.rows])
            for part, array in (("text", texts.data), ("ends", texts.ends), ("hash", texts.hashes)):
                out[ids_name(self.log.names, part)] = array
        lengths = {name: len(array) for name, array in out.items()}
        lengths.pop(ids_name(self.log.names, "text"), None)  # its length is in bytes
        if wrong := {name for name, length in lengths.items() if length != extent.rows}:
            raise StoreWriteError(
                f"{sorted(wrong)} do not have {extent.rows} rows. This is a bug in sawlog."
            )
        return out


def _copies(log: Series, entries: Entries) -> dict[str, np.ndarray] | None:
    """Return copies of the first entries of a series as its buffers, if they are small."""
    column, owned = log.column, type(entries) is OwnedEntries
    name = column.name
    values = _copy(entries.values, column.dtype, owned)
    if values is None:
        return None
    made = {name: values}
    for step in log.steps:
        own = _copy(entries.steps[step.name], step.dtype, owned)
        if own is None:
            return None
        made[step_name(step.name, name)] = own
    return made


def _copy(array: Any, dtype: np.dtype, owned: bool) -> np.ndarray | None:
    """Return a small array as it is kept, or None for a large one."""
    if type(array) is not np.ndarray or array.nbytes >= SMALL:
        return None
    if owned and array.dtype is dtype:  # a read-only copy in the order of C
        return array
    return array.astype(dtype, order="C", copy=not owned)


def _buffers(log: Table | Series) -> dict[str, np.ndarray]:
    """Return an empty array for each tensor."""
    if isinstance(log, Series):
        name = log.column.name
        steps = {step_name(step.name, name): _empty(step.dtype, step.shape) for step in log.steps}
        return {name: _empty(log.column.dtype, log.column.shape), **steps}
    arrays = {column.name: _empty(column.dtype, column.shape) for column in log.columns}
    if log.ids == "int":
        arrays[ids_name(log.names)] = _empty(np.dtype(np.int64), ())
    return arrays


@functools.lru_cache(1024)
def _empty(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array without rows, shared by all buffers."""
    return np.empty((0, *shape), dtype)


def _grown(array: np.ndarray, rows: int, need: int, at_most: int) -> np.ndarray:
    """Return a longer array with the same first rows."""
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    roomy = need * max(1, row_bytes) >= _LARGE
    size = max(need, at_most if roomy else min(2 * need, at_most))
    grown = np.empty((size, *array.shape[1:]), array.dtype)
    grown[:rows] = array[:rows]
    return grown


@dataclasses.dataclass
class PendingChunks:
    """The buffers of the next segment, and reusable ones of a published segment."""

    chunks: dict[str, ChunkBuffer] = dataclasses.field(default_factory=dict)
    spare: dict[str, ChunkBuffer] = dataclasses.field(default_factory=dict)

    def chunk(self, log: Table | Series) -> ChunkBuffer:
        """Return the buffer of a table or series."""
        first = log.first
        found = self.chunks.get(first)
        if found is None:
            spare = self.spare.get(first)
            found = ChunkBuffer(log) if spare is None else spare.recycled()
            self.chunks[first] = found
        return found

    def recycled(self) -> PendingChunks:
        """Return empty buffers that reuse the memory."""
        return PendingChunks(spare=self.chunks)

    def filled(self, call: object) -> list[tuple[ChunkBuffer, Extent]]:
        """Return the buffers that are not empty, with their extents for ``call``."""
        found = [(chunk, chunk.extent(call)) for chunk in self.chunks.values()]
        return [(chunk, extent) for chunk, extent in found if not extent.empty]
