"""A tensor of a log over all its segments, as one array that is read in parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sawlog.store._format._chunks import Chunk, SeriesChunk, mask_name, step_name
from sawlog.store._format._schema import Series
from sawlog.store._format._segment import Segment

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader

Chunks = Sequence[tuple[Segment, Chunk]]


class StoredTensor:
    """An array ``[rows, ...]``. A slice is a view if one segment holds all of it."""

    def __init__(
        self, chunks: Chunks, tensor: str, dtype: np.dtype, shape: tuple[int, ...]
    ) -> None:
        self._chunks = [(segment, chunk) for segment, chunk in chunks if chunk.rows]
        self.tensor, self.dtype, self.shape = tensor, dtype, shape
        self.starts = np.cumsum([0, *(chunk.rows for _, chunk in self._chunks)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Return the rows from ``start`` to ``stop``, checked."""
        parts = [self._part(number, low, high) for number, low, high in self._split(start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty((0, *self.shape), self.dtype), *parts])

    def _split(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the chunks of these rows, with the rows within each."""
        at = start
        while at < stop:
            number = int(np.searchsorted(self.starts, at, side="right")) - 1
            first, end = int(self.starts[number]), int(self.starts[number + 1])
            yield number, at - first, min(stop, end) - first
            at = end

    def _part(self, number: int, low: int, high: int) -> np.ndarray:
        return self._chunks[number][0].values(self.tensor, low, high)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return single rows in any order, checked; zeros for -1."""
        out = np.zeros((len(rows), *self.shape), self.dtype)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owner[rows >= 0]).tolist():
            where = np.flatnonzero((owner == number) & (rows >= 0))
            out[where] = self._rows(number, rows[where] - self.starts[number])
        return out

    def _rows(self, number: int, rows: np.ndarray) -> np.ndarray:
        segment = self._chunks[number][0]
        placed = segment.tensors[self.tensor]
        out = np.empty((len(rows), *placed.shape[1:]), placed.dtype)
        segment.take_into(self.tensor, rows, out, np.arange(len(rows)))
        return out

    def release(self, start: int, stop: int) -> None:
        """Release the memory that these rows of the maps take."""
        for number, low, high in self._split(start, stop):
            segment = self._chunks[number][0]
            if self.tensor in segment.tensors:
                segment.release((self.tensor,), low, high)


def _masked(chunk: Chunk) -> bool:
    return isinstance(chunk, SeriesChunk) and chunk.mask


class StoredMask(StoredTensor):
    """The mask of a series; it may be absent in some segments, or have fewer axes."""

    def _part(self, number: int, low: int, high: int) -> np.ndarray:
        segment, chunk = self._chunks[number]
        shape = (high - low, *self.shape)
        if not _masked(chunk):
            return np.ones(shape, bool)
        return self._grown(segment.values(self.tensor, low, high), shape)

    def _rows(self, number: int, rows: np.ndarray) -> np.ndarray:
        shape = (len(rows), *self.shape)
        if not _masked(self._chunks[number][1]):
            return np.ones(shape, bool)
        return self._grown(super()._rows(number, rows), shape)

    @staticmethod
    def _grown(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim)), shape)


class StoredSeries:
    """The values, steps and mask of a series."""

    def __init__(self, reader: Reader, series: Series) -> None:
        chunks, column = reader._chunks(series), series.column
        self.name, self.series = column.name, series
        self.values = StoredTensor(chunks, column.name, column.dtype, column.shape)
        self.steps = {
            step.name: StoredTensor(chunks, step_name(step.name, self.name), step.dtype, step.shape)
            for step in series.steps
        }
        self.mask = _mask_of(chunks, self.name)
        runs = [[entries, notes] for entries, notes in reader.attrs(self.name)]
        self.attrs = runs if any(notes for _, notes in runs) else []

    def __len__(self) -> int:
        return len(self.values)

    @property
    def parts(self) -> list[StoredTensor]:
        """The values, the steps and the mask."""
        return [self.values, *self.steps.values(), *([self.mask] if self.mask else [])]

    @property
    def row_bytes(self) -> int:
        """The bytes of one entry, with its steps and mask."""
        return sum(part.row_bytes for part in self.parts)

    def step_mask(self, axis: str, mask: np.ndarray | None) -> np.ndarray | None:
        """Return which items of a step axis were logged, given the mask of some entries.

        A step that was logged for each lane of a ``vmap`` has the leading axes of the values. Where
        a lane did not log, its step is a placeholder. None if the step has no such axes.
        """
        if mask is None:
            return None
        pairs = zip(self.steps[axis].shape, mask.shape[1:], strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if not shared:
            return None
        return np.asarray(mask.any(axis=tuple(range(1 + shared, mask.ndim))))

    def release(self, start: int, stop: int) -> None:
        """Release the memory that these entries take."""
        for part in self.parts:
            part.release(start, stop)


def _mask_of(chunks: Chunks, name: str) -> StoredMask | None:
    tensor = mask_name(name)
    shapes = [s.tensors[tensor].shape[1:] for s, c in chunks if _masked(c) and c.rows]
    return StoredMask(chunks, tensor, np.dtype(bool), max(shapes, key=len)) if shapes else None


def windows(
    rows: int, row_bytes: int, budget: int, cuts: Sequence[int] = (), least: int = 1 << 20
) -> Iterator[tuple[int, int]]:
    """Divide rows into pieces of at most a third of ``budget``.

    A piece ends at one of the ``cuts`` unless that makes it smaller than ``least`` bytes.

    >>> list(windows(10, 1, 12, cuts=[3, 5, 6], least=2))
    [(0, 3), (3, 5), (5, 9), (9, 10)]
    """
    most = max(1, budget // 3 // max(1, row_bytes))
    few = max(1, least // max(1, row_bytes))
    edges = np.unique(np.asarray(cuts, dtype=np.int64))
    start = 0
    while start < rows:
        stop = min(rows, start + most)
        at = int(np.searchsorted(edges, start + few))
        if at < len(edges) and edges[at] < stop:
            stop = int(edges[at])
        yield start, stop
        start = stop
