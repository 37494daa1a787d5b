"""What was accepted and is not in a segment yet: growing buffers, one chunk a table or series."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.records import Entries
from sawlog.store._ids import Texts
from sawlog.store._schema import Column, Series, Table
from sawlog.store._segment import ids_name, mask_name, step_name
from sawlog.store._unmade import Unmade

_LARGE = 1 << 20  # bytes: from here on room for a whole segment is made, and filled as needed


class Growing:
    """An array that rows are added to; its memory is used again for the next segment."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._array = np.empty((0, *shape), dtype)
        self.rows = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self._array.shape[1:]

    def add(self, rows: np.ndarray | Unmade, at_most: int) -> None:
        """Copy rows in; ``at_most`` is how many there will be before the buffer is emptied."""
        need = self.rows + len(rows)
        if need > len(self._array):
            roomy = need * max(1, rows[:1].nbytes) >= _LARGE
            size = max(need, at_most if roomy else min(2 * need, at_most))
            grown = np.empty((size, *self._array.shape[1:]), self._array.dtype)
            grown[: self.rows] = self._array[: self.rows]
            self._array = grown
        if isinstance(rows, Unmade):
            rows.into(self._array[self.rows : need])
        else:
            self._array[self.rows : need] = rows
        self.rows = need

    def view(self) -> np.ndarray:
        """The rows so far."""
        return self._array[: self.rows]


@dataclasses.dataclass
class Chunk:
    """The buffers of one table or series."""

    log: Table | Series
    tensors: dict[str, Growing]
    texts: list[str] = dataclasses.field(default_factory=list)
    attrs: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)
    rows: int = 0

    @classmethod
    def of(cls, log: Table | Series) -> Chunk:
        """Empty buffers."""
        columns: dict[str, Column] = {}
        if isinstance(log, Table):
            columns.update((column.name, column) for column in log.columns)
            if log.ids == "int":
                columns[ids_name(log.names)] = Column("", np.dtype(np.int64))
        else:
            columns[log.column.name] = log.column
            columns.update((step_name(s.name, log.column.name), s) for s in log.steps)
        return cls(log, {name: Growing(c.dtype, c.shape) for name, c in columns.items()})

    @property
    def empty(self) -> bool:
        """Whether nothing is in it, not even a note."""
        return not self.rows and not self.attrs

    def clear(self) -> None:
        """Forget the rows and keep the memory."""
        self.rows, self.texts, self.attrs = 0, [], []
        if isinstance(self.log, Series):
            self.tensors.pop(mask_name(self.log.column.name), None)
        for tensor in self.tensors.values():
            tensor.rows = 0

    def add_rows(
        self, ids: np.ndarray | list[str], values: Mapping[str, np.ndarray | Unmade], at_most: int
    ) -> None:
        """Add rows of a table."""
        for name, array in values.items():
            self.tensors[name].add(array, at_most)
        if isinstance(ids, list):
            self.texts += ids
        else:
            self.tensors[ids_name(self.log.names)].add(ids, at_most)
        self.rows += len(ids)

    def takes(self, mask: np.ndarray | None) -> bool:
        """Whether entries with this mask fit behind those that are here."""
        assert isinstance(self.log, Series)
        own = self.tensors.get(mask_name(self.log.column.name))
        return mask is None or own is None or own.shape == mask.shape[1:]

    def add_entries(self, entries: Entries, at_most: int) -> None:
        """Add entries of a series."""
        assert isinstance(self.log, Series)
        name, count = self.log.column.name, len(entries)
        self.tensors[name].add(entries.values, at_most)
        for axis, array in entries.steps.items():
            self.tensors[step_name(axis, name)].add(array, at_most)
        self._add_mask(entries.mask, count, at_most)
        self._add_attrs(dict(entries.attrs), count)
        self.rows += count

    def _add_mask(self, mask: np.ndarray | None, count: int, at_most: int) -> None:
        name = mask_name(self.log.names[0])
        if mask is not None and name not in self.tensors:
            self.tensors[name] = Growing(np.dtype(bool), mask.shape[1:])
            self.tensors[name].add(np.ones((self.rows, *mask.shape[1:]), bool), at_most)
        if name in self.tensors:
            shape = (count, *self.tensors[name].shape)
            self.tensors[name].add(np.ones(shape, bool) if mask is None else mask, at_most)

    def _add_attrs(self, attrs: dict[str, Any], count: int) -> None:
        if not attrs and not self.attrs:
            return
        if not self.attrs and self.rows:
            self.attrs.append((self.rows, {}))
        if self.attrs and self.attrs[-1][1] == attrs:
            count += self.attrs.pop()[0]
        self.attrs.append((count, attrs))

    def describe(self) -> dict[str, Any]:
        """The chunk as FORMAT.md has it."""
        if isinstance(self.log, Table):
            return {"table": list(self.log.names), "rows": self.rows, "ids": self.log.ids}
        name = self.log.column.name
        said: dict[str, Any] = {"series": name, "rows": self.rows, "steps": list(self.log.axes)}
        if mask_name(name) in self.tensors:
            said["mask"] = True
        if self.attrs:
            said["attrs"] = [[rows, attrs] for rows, attrs in self.attrs]
        return said

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors of the chunk."""
        out = {name: tensor.view() for name, tensor in self.tensors.items()}
        if isinstance(self.log, Table) and self.log.ids == "str":
            texts = Texts.of(self.texts)
            for part, array in (("text", texts.data), ("ends", texts.ends), ("hash", texts.hashes)):
                out[ids_name(self.log.names, part)] = array
        return out


@dataclasses.dataclass
class Pending:
    """The chunks of the next segment."""

    chunks: dict[str, Chunk] = dataclasses.field(default_factory=dict)
    nbytes: int = 0

    def chunk(self, log: Table | Series) -> Chunk:
        """The chunk of a table or series."""
        first = log.names[0]
        if first not in self.chunks:
            self.chunks[first] = Chunk.of(log)
        return self.chunks[first]

    @property
    def filled(self) -> list[Chunk]:
        """Those that hold anything."""
        return [chunk for chunk in self.chunks.values() if not chunk.empty]

    def clear(self) -> None:
        """Forget everything and keep the memory."""
        self.nbytes = 0
        for chunk in self.chunks.values():
            chunk.clear()
