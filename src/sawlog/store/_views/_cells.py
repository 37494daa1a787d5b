"""Sheets: rows or entries of a store as columns of equal length, independent of any format.

A sheet is the contents of one Parquet file, CSV file or data frame. It yields its columns in
batches, so that it may be larger than memory. The writers of formats only see batches, no stores.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from sawlog.store._format import _dtypes
from sawlog.store._format._schema import Column

TEXT = np.dtype(object)  # the dtype of a field whose cells are Python strings
Role = Literal["id", "name", "step", "value", "shape"]


@dataclasses.dataclass(frozen=True)
class Field:
    """A column of a sheet: its name, its role, and the type of a cell.

    ``shape`` is None if cells have different shapes.
    """

    name: str
    role: Role
    dtype: np.dtype
    shape: tuple[int, ...] | None = ()

    def to_json(self) -> dict[str, Any]:
        """Return the original type, for the metadata of files with other types."""
        dtype = "str" if self.dtype == TEXT else _dtypes.name_of(self.dtype)
        shape = None if self.shape is None else list(self.shape)
        return {"role": self.role, "dtype": dtype, "shape": shape}


@dataclasses.dataclass(frozen=True)
class Cells:
    """Some rows of a field: values ``[n, ...]``.

    ``valid`` ``[n]`` is false for null cells. ``mask`` ``[n, ...]``, with one or more of the
    leading axes of a cell, is false for parts that were not logged.
    """

    values: np.ndarray
    valid: np.ndarray | None = None
    mask: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, values: np.ndarray, mask: np.ndarray | None) -> Cells:
        """Build cells from entries and their mask, which is for whole entries or for parts."""
        if mask is None or mask.ndim > 1:
            return cls(values, None, mask)
        return cls(values, mask)

    def copy(self) -> Cells:
        """Return a copy."""
        arrays = (self.values, self.valid, self.mask)
        return Cells(*(None if array is None else array.copy() for array in arrays))  # type: ignore[arg-type]


Batch = Sequence[Cells]  # one for each field of the sheet


class Sheet(abc.ABC):
    """Columns of equal length, in batches."""

    name: str
    """The stem of its file name."""

    fields: tuple[Field, ...]
    """Its columns, in order."""

    logs: tuple[Column, ...]
    """The exported names of the store, with their types."""

    rows: int
    """The number of rows."""

    nbytes: int
    """The approximate number of bytes to read."""

    @abc.abstractmethod
    def batches(self, budget: int) -> Iterator[Batch]:
        """Yield all rows in order, in batches within a third of ``budget``; views if possible."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Describe the sheet, for messages."""

    @property
    def attrs(self) -> dict[str, list[Any]]:
        """The attrs of its names, as runs ``[number of entries, attrs]``."""
        return {}


def joined(parts: Sequence[Cells]) -> Cells:
    """Concatenate cells; a single one is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    return Cells(values, _joined(parts, "valid"), _joined(parts, "mask"))


def _joined(parts: Sequence[Cells], which: str) -> np.ndarray | None:
    arrays = [getattr(part, which) for part in parts]
    if all(array is None for array in arrays):
        return None
    shape = next(array.shape[1:] for array in arrays if array is not None)
    filled = (
        np.ones((len(part), *shape), bool) if array is None else array
        for part, array in zip(parts, arrays, strict=True)
    )
    return np.concatenate(list(filled))


def coalesced(batches: Iterable[Batch], least: int, *, copy: bool) -> Iterator[Batch]:
    """Join small batches until they have at least ``least`` bytes; the last may be smaller.

    Large batches pass through. With ``copy``, small ones are copied while they wait: as views they
    would read released pages again. Without it, a single small batch stays a view.
    """
    waiting: list[Batch] = []
    size = 0
    for batch in batches:
        own = sum(cells.values.nbytes for cells in batch)
        if waiting and (own >= least or _shapes(waiting[0]) != _shapes(batch)):
            yield _merged(waiting)
            waiting, size = [], 0
        if own >= least:
            yield batch
            continue
        waiting.append([cells.copy() for cells in batch] if copy else batch)
        size += own
        if size >= least:
            yield _merged(waiting)
            waiting, size = [], 0
    if waiting:
        yield _merged(waiting)


def _shapes(batch: Batch) -> list[tuple[int, ...]]:
    return [cells.values.shape[1:] for cells in batch]


def _merged(batches: Sequence[Batch]) -> Batch:
    return [joined(parts) for parts in zip(*batches, strict=True)]


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """Return a column name that is not taken.

    >>> free_name("id", ["loss"]), free_name("id", ["id", "loss"])
    ('id', 'sawlog.id')
    """
    taken = set(taken)
    while wanted in taken:
        wanted = f"sawlog.{wanted}"
    return wanted
