"""Logs to be compared: rows by example id, of one layer or many, in memory or in a store."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sawlog import store
from sawlog._array_device import NUMPY, ArrayDevice, to_numpy
from sawlog.capture import SCALE, Provenance, check_same_weights, noted, ragged
from sawlog.errors import ArgumentError, UnknownIdError

PREFIX = "grad/"
BUDGET = 256 << 20

Ids = np.ndarray | list[str]


@dataclasses.dataclass(frozen=True)
class LayerRows:
    """Some rows of a layer as they are stored, ``[n, ...]``, and their scales, if they have any."""

    values: np.ndarray
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def elements(self) -> int:
        """How many numbers a row has."""
        return math.prod(self.values.shape[1:])

    def flat(self, place: ArrayDevice = NUMPY) -> Any:
        """Rows ``[n, elements]`` in float32, or float64 if they are that; without their scale."""
        rows = self.values.reshape(len(self.values), self.elements)
        return widened(rows) if place == NUMPY else place.single(rows)

    def cut(self, rows: Any) -> LayerRows:
        """Some of the rows."""
        return LayerRows(self.values[rows], None if self.scale is None else self.scale[rows])

    def rows(self, place: ArrayDevice = NUMPY) -> Any:
        """Rows as they were logged, with two axes at least."""
        rows = widened(self.values) if place == NUMPY else place.single(self.values)
        if self.scale is not None:
            rows = rows * place.put(self.scale.reshape(-1, *(1,) * (rows.ndim - 1)))
        return rows.reshape(len(rows), *rows.shape[1:], *(1,) * (3 - rows.ndim))


def widened(array: np.ndarray) -> np.ndarray:
    """An array in float32; float64 stays that."""
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype == ml_dtypes.bfloat16:  # its bits are the upper half of those of a float32
        bits = np.asarray(array).view(np.uint16).astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return array.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """Some examples: their ids, and a column for each layer."""

    ids: Ids
    columns: Mapping[str, LayerRows]

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, place: ArrayDevice = NUMPY) -> dict[str, Any]:
        """The rows of every layer as they were logged."""
        return {name: column.rows(place) for name, column in self.columns.items()}

    def widened(self) -> ExampleRows:
        """The same as it was logged, without scales."""
        return ExampleRows(self.ids, {name: LayerRows(rows) for name, rows in self.rows().items()})

    def cut(self, rows: slice) -> ExampleRows:
        """Some of the examples."""
        columns = {name: column.cut(rows) for name, column in self.columns.items()}
        return ExampleRows(self.ids[rows], columns)


class Logs:
    """Rows of examples, to go through as often as is needed.

    Args:
        source: the path of a store, a reader of one, or a dict of arrays ``[n, ...]`` by layer.
        ids: the ids of the examples of a dict; their numbers by default.
        names: which layers; all gradients by default, or all there is if there are none.
        meta: notes about the rows of a dict, as those of a store: ``options``, ``blocks``, and
            ``provenance``, what they were computed with.

    Raises:
        ArgumentError: there is nothing of that name, arrays do not go together, or a store, which
            has ids of its own, is given others.
    """

    def __init__(
        self,
        source: Logs | store.Reader | Mapping[str, Any] | str | os.PathLike[str],
        *,
        ids: Any = None,
        names: Sequence[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._meta: dict[str, Any] = dict(meta or {})
        self._reader: store.Reader | None = None
        self._all: ExampleRows | None = None
        self._grads: set[str] = set()
        self.path: str | None = None
        self.layers: list[str] = []
        if ids is not None and not isinstance(source, Mapping):
            raise ArgumentError(
                "ids= names the rows of a dict of arrays; those of logs and stores have their own. "
                "Hint: Logs(source).gather(ids) has the rows of some of them."
            )
        if isinstance(source, Logs):
            self._reader, self._all, self.path = source._reader, source._all, source.path
            self._meta, self._grads = source._meta, source._grads
            there = source.layers
        elif isinstance(source, Mapping):
            given = _in_memory(source, ids)
            there = _gradients_of(list(given.columns))
            self._grads = {_named(n) for n in given.columns if n.startswith(PREFIX)}
            self._all = ExampleRows(
                given.ids, {_named(n): column for n, column in given.columns.items()}
            )
        else:
            self._reader = source if isinstance(source, store.Reader) else store.open(source)
            self.path = str(self._reader.path)
            there = _layers_of(self._reader)
        also = self._all.columns if self._all is not None else _tables_of(self._reader)
        self.layers = _chosen(there, names, list(also))
        self._memory: ExampleRows | None = None
        if self._all is not None:
            own = {name: self._all.columns[name] for name in self.layers}
            self._memory = ExampleRows(self._all.ids, own)

    @classmethod
    def join(cls, several: Iterable[Logs]) -> Logs:
        """The rows of several logs in memory, one after the other, as of several queries.

        Raises:
            ArgumentError: they have other layers or another compression, or an id is there twice.
            WeightsMismatchError: they come from different weights.
        """
        logs = list(several)
        if not logs:
            raise ArgumentError("There are no logs to join.")
        return logs[0] if len(logs) == 1 else cls(**joined_logs(logs))

    def __add__(self, other: Logs) -> Logs:
        return Logs.join([self, other]) if isinstance(other, Logs) else NotImplemented

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
    def ragged(self) -> list[str]:
        """The layers whose rows have different numbers of positions."""
        if self._reader is None:
            return []
        return [n for n in self.layers if ragged.is_ragged(self._reader, self._column(n))]

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted about the rows."""
        return self._meta if self._reader is None else self._reader.meta

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """What the rows were computed with; nothing if that is not known."""
        if self._reader is not None:
            return noted(self._reader)
        return tuple(map(Provenance.from_json, self._meta.get("provenance", ())))

    @property
    def ids(self) -> Ids:
        """The ids of all examples, in order."""
        if self._memory is not None:
            return self._memory.ids
        assert self._reader is not None
        ids: Ids = self._reader.ids(self._columns()[0])
        return ids

    @property
    def columns(self) -> list[str]:
        """What the layers are called in the store."""
        return self._columns()

    def _columns(self) -> list[str]:
        assert self._reader is not None
        names = [self._column(layer) for layer in self.layers]
        return names + [each + SCALE for each in names if each + SCALE in self._reader.names]

    def parts(
        self, budget: int = BUDGET, part: tuple[int, int] = (0, 1), *, copies: int = 0
    ) -> Iterator[ExampleRows]:
        """All examples in order, or the i-th of n parts of them, within a budget of bytes.

        The budget is that of the block at hand, of the one that is read ahead, and of ``copies``
        bytes that the caller needs for each element, or widening it to float32 does.
        """
        if budget < 1:
            raise ArgumentError(f"budget is a number of bytes from 1 on, got {budget!r}.")
        stored, elements, plain = self._sizes()
        each = 2 * stored + elements * (copies if plain else copies + 4)
        most = max(1, budget // max(1, each))
        if self._memory is not None:
            yield from _pieces(self._memory, part, most)
            return
        assert self._reader is not None
        columns = self._columns()
        for block in self._reader.blocks(columns, budget=2 * most * max(1, stored), part=part):
            if len(block):  # all of its rows may be superseded
                yield ExampleRows(block.ids, self._taken(block.values))

    def shapes(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """The dtype and the shape of the rows of each layer, as they are stored.

        Raises:
            ArgumentError: some are no real numbers, as texts; names them, and those that are.
        """
        if self._memory is not None:
            columns = self._memory.columns
            found = {n: (c.values.dtype, c.values.shape[1:]) for n, c in columns.items()}
        else:
            assert self._reader is not None
            stored = {name: self._reader.schema.column(self._column(name)) for name in self.layers}
            found = {name: (np.dtype(c.dtype), tuple(c.shape)) for name, c in stored.items()}
        _check_numbers({name: dtype for name, (dtype, _) in found.items()}, self.path)
        return found

    def where(self, place: ArrayDevice) -> ArrayDevice:
        """That place, or numpy's if it cannot hold the rows as they are."""
        held = all(place.holds(dtype) for dtype, _ in self.shapes().values())
        return place if held else NUMPY

    def _sizes(self) -> tuple[int, int, bool]:
        """The bytes of a row, its elements, and whether they are used as they are."""
        sizes = [(dtype, math.prod(shape)) for dtype, shape in self.shapes().values()]
        stored = sum(dtype.itemsize * size for dtype, size in sizes)
        plain = all(dtype in (np.float32, np.float64) for dtype, _ in sizes)
        return stored, sum(size for _, size in sizes), plain

    @property
    def elements(self) -> int:
        """How many numbers there are of each example."""
        return self._sizes()[1]

    def state(self) -> str:
        """A name for what is in it, which changes with any row."""
        digest = hashlib.blake2b(digest_size=12)
        if self._reader is not None:
            segments = [segment.name for segment in self._reader.segments]
            digest.update(repr((self._reader.id, len(self), segments)).encode())
            return digest.hexdigest()
        assert self._memory is not None
        digest.update(repr(_listed(self._memory.ids)).encode())
        for name, column in self._memory.columns.items():
            for array in (column.values, column.scale):
                if array is not None:
                    digest.update(repr((name, array.shape, str(array.dtype))).encode())
                    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def _taken(self, values: Mapping[str, np.ndarray]) -> dict[str, LayerRows]:
        names = {layer: self._column(layer) for layer in self.layers}
        return {n: LayerRows(values[c], values.get(c + SCALE)) for n, c in names.items()}

    def gather(self, ids: Any) -> ExampleRows:
        """The rows of these examples, in this order.

        Raises:
            UnknownIdError: some are not there.
            ArgumentError: they are no real numbers.
        """
        self.shapes()
        if self._reader is not None:
            return ExampleRows(ids, self._taken(self._reader.gather(ids, self._columns())))
        assert self._memory is not None
        places = {each: place for place, each in enumerate(_listed(self._memory.ids))}
        lacking = [each for each in _listed(ids) if each not in places]
        if lacking:
            raise UnknownIdError(f"There are no logs of the examples {lacking[:5]!r}.")
        at = [places[each] for each in _listed(ids)]
        return ExampleRows(
            ids, {name: column.cut(at) for name, column in self._memory.columns.items()}
        )

    def of(self, part: ExampleRows) -> Logs:
        """Some of the rows as logs in memory, with the same notes."""
        said = {**self.meta, "provenance": [each.to_json() for each in self.provenance]}
        return Logs(part.rows(), ids=part.ids, meta=said)

    @property
    def files(self) -> int:
        """Into how many parts it can be cut."""
        return 1 if self._reader is None else max(1, len(self._reader.segments))

    def scan(self, budget: int = BUDGET, place: ArrayDevice = NUMPY) -> Iterator[dict[str, Any]]:
        """The rows of every layer, block by block, with room for four copies in float64."""
        for part in self.parts(budget, copies=32):
            yield part.rows(place)

    def batches(self, budget: int) -> Iterator[ExampleRows]:
        """All of it in memory, as it was logged, in parts that take a budget of bytes in float64.

        Each has one example at least.
        """
        most = max(1, budget // (8 * max(1, self.elements)))
        if len(self) <= most:
            yield self.whole()
            return
        ids = self.ids
        for start in range(0, len(ids), most):
            yield self.gather(ids[start : start + most]).widened()

    def whole(self) -> ExampleRows:
        """All of it in memory, as it was logged."""
        parts = list(self.parts())
        if len(parts) == 1:
            return parts[0].widened()
        ids: Any = [each for part in parts for each in part.ids]
        columns = {
            name: LayerRows(np.concatenate([part.columns[name].rows() for part in parts]))
            for name in (self.layers if parts else [])
        }
        if parts and isinstance(parts[0].ids, np.ndarray):
            ids = np.concatenate([np.asarray(part.ids) for part in parts])
        return ExampleRows(ids, columns)


def _in_memory(source: Mapping[str, Any], ids: Any) -> ExampleRows:
    columns = {}
    for name, given in source.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in source:
            continue
        array, scale = to_numpy(given), source.get(name + SCALE)
        if not array.ndim:
            raise ArgumentError(f"The rows of {name!r} are an array [examples, ...], got a number.")
        columns[name] = LayerRows(array, None if scale is None else to_numpy(scale))
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        said = f"have different numbers of examples: {lengths}" if lengths else "are none"
        raise ArgumentError(f"The layers {said}.")
    count = next(iter(lengths.values()))
    own: Any = np.arange(count) if ids is None else np.asarray(_listed(ids))
    if len(own) != count:
        raise ArgumentError(f"There are {len(own)} ids for {count} examples.")
    if count and (own.ndim != 1 or own.dtype.kind not in "iuU"):
        raise ArgumentError(f"ids are whole numbers or texts, one for each example, got {own!r}.")
    if len(set(own.tolist())) != count:
        raise ArgumentError("Some examples have the same id. Hint: give each one of its own.")
    return ExampleRows(own.tolist() if own.dtype.kind == "U" else own, columns)


def _named(column: str) -> str:
    """The name of the layer that a column is of."""
    return column.removeprefix(PREFIX)


def _gradients_of(columns: Sequence[str]) -> list[str]:
    """The layers of columns: those with gradients, or all if there are none."""
    named = [name for name in columns if not (name.endswith(SCALE) or ragged.is_part(name))]
    return [_named(name) for name in named if name.startswith(PREFIX)] or named


def _tables_of(reader: store.Reader | None) -> list[str]:
    """The names of all columns by example id."""
    assert reader is not None
    return [name for table in reader.schema.tables for name in table.names]


def _layers_of(reader: store.Reader) -> list[str]:
    found = _gradients_of(_tables_of(reader))
    if not found:
        raise ArgumentError(
            f"The store at {reader.path} has no rows by example id. Hint: log some, with "
            "`with run(data_id=ids): ...`."
        )
    return found


def _chosen(there: list[str], names: Sequence[str] | None, also: Sequence[str]) -> list[str]:
    if names is None:
        return there
    given = [names] if isinstance(names, str) else list(names)
    wanted = list(dict.fromkeys(map(_named, given)))
    known = {*there, *map(_named, also)}
    lacking = [name for name in wanted if name not in known]
    if lacking or not wanted:
        said = f"There is no layer {', '.join(map(repr, lacking))}" if wanted else "names is empty"
        raise ArgumentError(f"{said}. There are: {', '.join(there)}.")
    return wanted


def _check_numbers(dtypes: Mapping[str, np.dtype], path: str | None) -> None:
    odd = {name: dtype for name, dtype in dtypes.items() if not is_real(dtype)}
    if not odd:
        return
    where = "" if path is None else f" at {path}"
    listed = ", ".join(f"{name!r} ({dtype})" for name, dtype in list(odd.items())[:5])
    usual = [name for name in dtypes if name not in odd]
    hint = f"choose layers by names={usual!r}" if usual else "log gradients, or other real numbers"
    raise ArgumentError(f"Rows{where} that are no real numbers: {listed}. Hint: {hint}.")


def is_real(dtype: np.dtype) -> bool:
    """Whether the items of an array are real numbers, also those that ml_dtypes has.

    >>> [is_real(np.dtype(name)) for name in ("bool", "int8", "bfloat16", "complex64", "U3", "M8")]
    [True, True, True, False, False, False]
    """
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes")


def _listed(ids: Any) -> list[Any]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def _pieces(whole: ExampleRows, part: tuple[int, int], most: int) -> Iterator[ExampleRows]:
    place, parts = part
    edges = np.linspace(0, len(whole), parts + 1).astype(int)
    for start in range(edges[place], edges[place + 1], most):
        yield whole.cut(slice(start, min(start + most, edges[place + 1])))


def joined_logs(logs: Sequence[Logs]) -> dict[str, Any]:
    """What makes one of several logs in memory: their rows, ids and notes."""
    parts = [each._all for each in logs]
    if any(part is None for part in parts):
        raise ArgumentError(
            "Logs of a store are not joined with others. Hint: write all rows into one store."
        )
    first = logs[0]
    for other in logs[1:]:
        _check_joined(first, other)
    given: dict[str, np.ndarray] = {}
    for name in parts[0].columns:  # type: ignore[union-attr]
        columns = [part.columns[name] for part in parts]  # type: ignore[union-attr]
        own = [c.values if c.scale is None else c.rows() for c in columns]
        label = PREFIX + name if name in first._grads else name
        given[label] = np.concatenate(_as_long(name, own))
    ids = [each for part in parts for each in _listed(part.ids)]  # type: ignore[union-attr]
    return {"source": given, "ids": ids, "meta": first._meta}


def _check_joined(one: Logs, other: Logs) -> None:
    assert one._all is not None
    assert other._all is not None
    if one._all.columns.keys() != other._all.columns.keys():
        raise ArgumentError("Logs of different layers cannot be joined.")
    ways = [each.meta.get("options", {}).get("compress") for each in (one, other)]
    projections = [{own.projection for own in each.provenance} for each in (one, other)]
    if ways[0] != ways[1] or projections[0] != projections[1]:
        raise ArgumentError(
            f"Logs that were compressed by {ways[0]} and by {ways[1]} cannot be joined: their "
            "numbers mean different things."
        )
    hint = "Hint: log all queries with the same checkpoint."
    check_same_weights(one.provenance, other.provenance, "some logs", "others", hint)


def _as_long(name: str, several: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays ``[n, positions, ...]`` with as many positions, zeros behind those that end sooner."""
    shapes = {each.shape[1:] for each in several}
    if len(shapes) == 1:
        return list(several)
    if min(each.ndim for each in several) < 2 or len({shape[1:] for shape in shapes}) > 1:
        raise ArgumentError(f"The rows of {name!r} have different shapes: {sorted(shapes)}.")
    most = max(shape[0] for shape in shapes)
    return [
        np.pad(each, [(0, 0), (0, most - each.shape[1])] + [(0, 0)] * (each.ndim - 2))
        for each in several
    ]
