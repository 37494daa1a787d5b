"""Merge several segments into the chunks and tensors of one.

Memory for the result is allocated first, from the headers alone, so that every file is opened once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.store._format import _empty_items
from sawlog.store._format._chunks import (
    Chunk,
    SeriesChunk,
    TableChunk,
    ids_name,
    mask_name,
    step_name,
)
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment
from sawlog.store._reading._join_chunks import merged_attrs
from sawlog.store._reading._stored_ids import stored_ids

RowsToKeep = Mapping[tuple[str, str], np.ndarray]  # (segment, table) -> rows that count
_TEXT_PARTS = ("text", "ends", "hash")
MOST_EMPTY_ITEMS = _empty_items.MOST // 4  # to merge; masks of different depths add some


class _Columns:
    """Tensors ``[rows, ...]`` that are filled in order."""

    def __init__(self, like: Mapping[str, Any], rows: int) -> None:
        self.arrays = {n: np.empty((rows, *p.shape[1:]), p.dtype) for n, p in like.items()}
        self._at = 0

    def add(self, segment: Segment, rows: int, keep: np.ndarray | None) -> None:
        """Copy the rows of a segment, or those to keep."""
        count = rows if keep is None else int(keep.sum())
        for name, array in self.arrays.items():
            values = segment.values(name)
            array[self._at : self._at + count] = values if keep is None else values[keep]
        self._at += count


class MergedTable:
    """Merges the chunks of a table."""

    def __init__(self, parts: Sequence[tuple[Segment, TableChunk]], counting: RowsToKeep) -> None:
        segment, self._first = parts[0]
        names, self._counting = self._first.names, counting
        kept = [(c.rows, counting.get((s.name, c.first))) for s, c in parts]
        self._rows = sum(rows if keep is None else int(keep.sum()) for rows, keep in kept)
        own = [*names, *([ids_name(names)] if self._first.ids == "int" else [])]
        self._columns = _Columns({name: segment.tensors[name] for name in own}, self._rows)
        self._texts: list[StringIds] = []

    def add(self, segment: Segment, chunk: TableChunk) -> None:
        """Add the next chunk."""
        keep = self._counting.get((segment.name, chunk.first))
        self._columns.add(segment, chunk.rows, keep)
        if chunk.ids == "str":
            texts = stored_ids(segment, chunk)
            assert isinstance(texts, StringIds)
            self._texts.append(
                texts if keep is None else StringIds.of(texts.take(keep.nonzero()[0]))
            )

    def result(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the chunk and its tensors."""
        names, tensors = self._first.names, dict(self._columns.arrays)
        if self._first.ids == "str":
            packed = _concatenated(self._texts)
            arrays = (packed.data, packed.ends, packed.hashes)
            for part, array in zip(_TEXT_PARTS, arrays, strict=True):
                tensors[ids_name(names, part)] = array
        return {"table": list(names), "rows": self._rows, "ids": self._first.ids}, tensors


def _concatenated(texts: Sequence[StringIds]) -> StringIds:
    offsets = np.cumsum([0, *(len(part.data) for part in texts)])
    ends = [part.ends + offset for part, offset in zip(texts, offsets, strict=False)]
    return StringIds.stored(
        np.concatenate([part.data for part in texts]),
        np.concatenate(ends),
        np.concatenate([part.hashes for part in texts]),
    )


class MergedSeries:
    """Merges the chunks of a series."""

    def __init__(self, parts: Sequence[tuple[Segment, SeriesChunk]], counting: RowsToKeep) -> None:
        segment, first = parts[0]
        self._name, self._axes = first.name, first.steps
        self._chunks = [chunk for _, chunk in parts]
        self._rows = sum(chunk.rows for chunk in self._chunks)
        own = [first.name, *(step_name(axis, first.name) for axis in first.steps)]
        self._columns = _Columns({name: segment.tensors[name] for name in own}, self._rows)
        self._mask, self._at = self._new_mask(parts), 0

    def _new_mask(self, parts: Sequence[tuple[Segment, SeriesChunk]]) -> np.ndarray | None:
        """Return an all-true mask with the axes of the deepest one, or None if no chunk has one."""
        shapes = [s.tensors[mask_name(self._name)].shape[1:] for s, c in parts if c.mask]
        return np.ones((self._rows, *max(shapes, key=len)), bool) if shapes else None

    def add(self, segment: Segment, chunk: SeriesChunk) -> None:
        """Add the next chunk."""
        self._columns.add(segment, chunk.rows, None)
        if chunk.mask and self._mask is not None:
            mask = segment.values(mask_name(self._name))
            mask = mask.reshape(mask.shape + (1,) * (self._mask.ndim - mask.ndim))
            self._mask[self._at : self._at + chunk.rows] = mask
        self._at += chunk.rows

    def result(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the chunk and its tensors."""
        tensors = dict(self._columns.arrays)
        chunk = {"series": self._name, "rows": self._rows, "steps": list(self._axes)}
        if self._mask is not None:
            tensors[mask_name(self._name)] = self._mask
            chunk["mask"] = True
        if any(each.attrs is not None for each in self._chunks):
            chunk["attrs"] = [[rows, attrs] for rows, attrs in merged_attrs(self._chunks)]
        return chunk, tensors


def merged(
    run: Sequence[Segment], counting: RowsToKeep
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return the chunks and tensors of a segment with all rows that count, in order."""
    groups: dict[str, list[tuple[Segment, Chunk]]] = {}
    for segment in run:
        for chunk in segment.chunks:
            groups.setdefault(chunk.first, []).append((segment, chunk))
    made: dict[str, Any] = {}
    for name, parts in groups.items():
        kind = MergedTable if isinstance(parts[0][1], TableChunk) else MergedSeries
        made[name] = kind(parts, counting)  # type: ignore[arg-type]
    for segment in run:
        for chunk in segment.chunks:
            made[chunk.first].add(segment, chunk)
        segment.forget()
    chunks, tensors = [], {}
    for one in made.values():
        chunk, own = one.result()
        chunks.append(chunk)
        tensors.update(own)
    return chunks, tensors
