"""Logs to be compared: rows by example id, of one layer or many, in memory or in a store."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sawlog import store
from sawlog.capture import SCALE
from sawlog.errors import ArgumentError, UnknownIdError

PREFIX = "grad/"
BUDGET = 256 << 20

Ids = np.ndarray | list[str]


@dataclasses.dataclass(frozen=True)
class Column:
    """Some rows of a layer as they are stored, ``[n, ...]``, and their scales, if they have any."""

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def flat(self) -> np.ndarray:
        """Rows ``[n, elements]`` in float32, or float64 if they are that; without their scale."""
        return widened(self.values.reshape(len(self.values), -1))

    def rows(self) -> np.ndarray:
        """Rows as they were logged, with two axes at least."""
        rows = widened(self.values)
        if self.scale is not None:
            rows = rows * self.scale.reshape(-1, *(1,) * (rows.ndim - 1))
        return rows.reshape(len(rows), *rows.shape[1:], *(1,) * (3 - rows.ndim))


def widened(array: np.ndarray) -> np.ndarray:
    """An array in float32; float64 stays that."""
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype == ml_dtypes.bfloat16:  # its bits are the upper half of those of a float32
        return (np.asarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Part:
    """Some examples: their ids, and a column for each layer."""

    ids: Ids
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> dict[str, np.ndarray]:
        """The rows of every layer as they were logged."""
        return {name: column.rows() for name, column in self.columns.items()}


class Logs:
    """Rows of examples, to go through as often as is needed.

    Args:
        source: the path of a store, a reader of one, or a dict of arrays ``[n, ...]`` by layer.
        ids: the ids of the examples of a dict; their numbers by default.
        names: which layers; all gradients by default, or all there is if there are none.

    Raises:
        ArgumentError: there is nothing of that name, or arrays do not go together.
    """

    def __init__(
        self,
        source: Logs | store.Reader | Mapping[str, Any] | str | os.PathLike[str],
        *,
        ids: Any = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._reader: store.Reader | None = None
        self._memory: Part | None = None
        self.path: str | None = None
        self.layers: list[str] = []
        if isinstance(source, Logs):
            self._reader, self._memory, self.path = source._reader, source._memory, source.path
            there = source.layers
        elif isinstance(source, Mapping):
            self._memory = _in_memory(source, ids)
            there = list(self._memory.columns)
        else:
            self._reader = source if isinstance(source, store.Reader) else store.open(source)
            self.path = str(self._reader.path)
            there = _layers_of(self._reader)
        also = () if self._reader is None else self._reader.names
        self.layers = _chosen(there, names, also)

    @property
    def reader(self) -> store.Reader | None:
        """The reader of the store, if they are in one."""
        return self._reader

    def __len__(self) -> int:
        if self._memory is not None:
            return len(self._memory)
        assert self._reader is not None
        return self._reader.count(self._column(self.layers[0]))

    def _column(self, layer: str) -> str:
        """What a layer is called in the store."""
        assert self._reader is not None
        return PREFIX + layer if PREFIX + layer in self._reader.names else layer

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted about the store."""
        return {} if self._reader is None else self._reader.meta

    @property
    def ids(self) -> Ids:
        """The ids of all examples, in order."""
        if self._memory is not None:
            return self._memory.ids
        assert self._reader is not None
        ids: Ids = self._reader.ids(self._columns()[0])
        return ids

    def _columns(self) -> list[str]:
        assert self._reader is not None
        names = [self._column(layer) for layer in self.layers]
        return names + [each + SCALE for each in names if each + SCALE in self._reader.names]

    def parts(self, budget: int = BUDGET, part: tuple[int, int] = (0, 1)) -> Iterator[Part]:
        """All examples in order, or the i-th of n parts of them, within a budget of bytes."""
        if self._memory is not None:
            yield from _pieces(self._memory, part)
            return
        assert self._reader is not None
        for block in self._reader.blocks(self._columns(), budget=budget, part=part):
            yield Part(block.ids, self._taken(block.values))

    def _taken(self, values: Mapping[str, np.ndarray]) -> dict[str, Column]:
        names = {layer: self._column(layer) for layer in self.layers}
        return {n: Column(values[c], values.get(c + SCALE)) for n, c in names.items()}

    def gather(self, ids: Any) -> Part:
        """The rows of these examples, in this order.

        Raises:
            UnknownIdError: some are not there.
        """
        if self._reader is not None:
            return Part(ids, self._taken(self._reader.gather(ids, self._columns())))
        assert self._memory is not None
        places = {each: place for place, each in enumerate(_listed(self._memory.ids))}
        lacking = [each for each in _listed(ids) if each not in places]
        if lacking:
            raise UnknownIdError(f"There are no logs of the examples {lacking[:5]!r}.")
        at = [places[each] for each in _listed(ids)]
        columns = {
            name: Column(c.values[at], None if c.scale is None else c.scale[at])
            for name, c in self._memory.columns.items()
        }
        return Part(ids, columns)

    @property
    def files(self) -> int:
        """Into how many parts it can be cut."""
        return 1 if self._reader is None else max(1, len(self._reader.segments))

    def scan(self, budget: int = BUDGET) -> Iterator[dict[str, np.ndarray]]:
        """The rows of every layer, block by block."""
        for part in self.parts(budget):
            yield part.rows()

    def whole(self) -> Part:
        """All of it in memory, as it was logged."""
        parts = list(self.parts())
        if len(parts) == 1:
            return _copied(parts[0])
        ids: Any = [each for part in parts for each in part.ids]
        columns = {
            name: Column(np.concatenate([part.columns[name].rows() for part in parts]))
            for name in (self.layers if parts else [])
        }
        if parts and isinstance(parts[0].ids, np.ndarray):
            ids = np.concatenate([np.asarray(part.ids) for part in parts])
        return Part(ids, columns)


def _copied(part: Part) -> Part:
    columns = {name: Column(np.array(column.rows())) for name, column in part.columns.items()}
    return Part(part.ids, columns)


def _in_memory(source: Mapping[str, Any], ids: Any) -> Part:
    columns = {}
    for name, array in source.items():
        if name.endswith(SCALE):
            continue
        array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
        scale = source.get(name + SCALE)
        columns[name.removeprefix(PREFIX)] = Column(
            array, None if scale is None else np.asarray(scale)
        )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ArgumentError(f"The layers have different numbers of examples: {lengths}.")
    count = next(iter(lengths.values()))
    own: Any = np.arange(count) if ids is None else ids
    if not isinstance(own, (list, np.ndarray)):
        own = list(own)
    if isinstance(own, list) and own and not isinstance(own[0], str):
        own = np.asarray(own)
    if len(own) != count:
        raise ArgumentError(f"There are {len(own)} ids for {count} examples.")
    return Part(own, columns)


def _layers_of(reader: store.Reader) -> list[str]:
    names = [name for name in reader.names if not name.endswith(SCALE)]
    grads = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    tables = {name for table in reader.schema.tables for name in table.names}
    found = grads or [name for name in names if name in tables]
    if not found:
        raise ArgumentError(f"The store at {reader.path} has no rows by example id.")
    return found


def _chosen(there: list[str], names: Sequence[str] | None, also: Sequence[str]) -> list[str]:
    if names is None:
        return there
    wanted = [names] if isinstance(names, str) else list(names)
    lacking = [name for name in wanted if name not in there and name not in also]
    if lacking or not wanted:
        raise ArgumentError(f"There is no layer {lacking}. There are: {', '.join(there)}.")
    return wanted


def _listed(ids: Any) -> list[Any]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def _pieces(whole: Part, part: tuple[int, int]) -> Iterator[Part]:
    place, parts = part
    edges = np.linspace(0, len(whole), parts + 1).astype(int)
    rows = slice(edges[place], edges[place + 1])
    columns = {
        name: Column(c.values[rows], None if c.scale is None else c.scale[rows])
        for name, c in whole.columns.items()
    }
    if rows.stop > rows.start or parts == 1:
        yield Part(whole.ids[rows], columns)
