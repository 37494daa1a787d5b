"""``array_histories``: logged arrays as histograms and images of some of their entries."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

import sawlog.store
from sawlog._png import encode_png, is_image
from sawlog.errors import DamagedStoreError
from sawlog.inspect._summarize import _is_real, _parts, _SegmentPart, _step
from sawlog.store import Reader, Series
from sawlog.store._format._chunks import mask_name, step_name

ENTRIES, BINS, PIXELS = 12, 40, 128


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayEntry:
    """One entry of a series of arrays.

    Args:
        steps: its steps.
        counts: how many elements are in each bin, ``[bins]``.
        least, mean, greatest: of its finite elements; None if no element is finite.
        nonfinite: how many elements are infinite or NaN.
        image: the entry as PNG, if it has the shape of an image.
    """

    steps: dict[str, Any]
    counts: list[int]
    least: float | None
    mean: float | None
    greatest: float | None
    nonfinite: int
    image: bytes | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayHistory:
    """A series of arrays: some of its entries, evenly spaced from the first to the last.

    ``edges`` are the bounds of the bins, ``[bins + 1]``, the same for all entries. ``total`` is the
    number of all entries.
    """

    name: str
    type: str
    total: int
    edges: list[float]
    entries: list[ArrayEntry]
    damage: str | None = None


def array_histories(
    store: str | os.PathLike[str] | Reader, *, entries: int = ENTRIES, limit: int | None = None
) -> list[ArrayHistory]:
    """Return histograms, and images where shapes allow, of the series of arrays of a store.

    Args:
        store: its folder, or an open reader.
        entries: how many entries of a series to read at most.
        limit: how many series to read at most; None is all.
    """
    if not isinstance(store, Reader):
        with sawlog.store.open(store) as reader:
            return array_histories(reader, entries=entries, limit=limit)
    logs = [s for s in store.schema.series if s.column.shape and _is_real(s.column.dtype)][:limit]
    parts = _parts(store, {log.column.name for log in logs})
    return [_history(log, parts.get(log.column.name, []), entries) for log in logs]


def _history(log: Series, parts: list[_SegmentPart], most: int) -> ArrayHistory:
    total = sum(part.rows for part in parts)
    name, kind = log.column.name, str(log.column)
    places = np.unique(np.linspace(0, max(0, total - 1), min(most, total)).astype(int)).tolist()
    try:
        read = [found for place in places if (found := _read(log, parts, place)) is not None]
    except DamagedStoreError as error:
        return ArrayHistory(name, kind, total, [], [], error.what)
    finite = [values[np.isfinite(values)] for values, _, _ in read]
    low = min((float(v.min()) for v in finite if v.size), default=0.0)
    high = max((float(v.max()) for v in finite if v.size), default=1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    made = [_entry(*each, edges) for each in read]
    return ArrayHistory(name, kind, total, edges.tolist(), made)


def _read(
    log: Series, parts: list[_SegmentPart], place: int
) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]] | None:
    """Return the elements of one entry, the entry as an image, and its steps."""
    name = log.column.name
    for part in parts:
        if place >= part.rows:
            place -= part.rows
            continue
        value = np.asarray(part.segment.values(name, place, place + 1)[0]).astype(np.float64)
        steps = {axis: _step(part.segment, step_name(axis, name), place) for axis in log.axes}
        if part.masked:
            mask = np.asarray(part.segment.values(mask_name(name), place, place + 1)[0], bool)
            if not mask.any():
                return None
            if not mask.all():
                return value[mask].reshape(-1), None, steps
        return value.reshape(-1), value if is_image(value) else None, steps
    return None


def _entry(
    values: np.ndarray, picture: np.ndarray | None, steps: dict[str, Any], edges: np.ndarray
) -> ArrayEntry:
    finite = values[np.isfinite(values)]
    counts = np.histogram(finite, edges)[0].tolist()
    image = None if picture is None else encode_png(picture, PIXELS)
    nonfinite = len(values) - len(finite)
    if not finite.size:
        return ArrayEntry(steps, counts, None, None, None, nonfinite, image)
    numbers = (float(finite.min()), float(finite.mean()), float(finite.max()))
    return ArrayEntry(steps, counts, *numbers, nonfinite, image)
