"""Rows of logs that are arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._array_device import to_numpy
from sawlog.errors import ArgumentError, UnknownIdError
from sawlog.influence._layer_names import gradient_layers, is_gradient, layer_of
from sawlog.influence._rows import ExampleRows, Ids, LayerRows, id_list
from sawlog.run_files._encode import SCALE
from sawlog.run_files._provenance import Provenance


class MemorySource:
    """Rows of a dict of arrays.

    Args:
        arrays: ``[n, ...]`` by the name of a layer or a log; a name that ends in ``.scale`` has the
            scales of int8 rows.
        ids: the ids of the examples; their indices if None.
        meta: metadata of the rows, as that of a store.
    """

    reader = None
    path = None
    files = 1

    def __init__(self, arrays: Mapping[str, Any], ids: Any, meta: Mapping[str, Any]) -> None:
        given = _example_rows(arrays, ids)
        self.meta = dict(meta)
        self.layers = gradient_layers(list(given.columns))
        self.gradients = {layer_of(name) for name in given.columns if is_gradient(name)}
        named = {layer_of(name): column for name, column in given.columns.items()}
        self.examples = ExampleRows(given.ids, named)

    @property
    def known(self) -> list[str]:
        """All layers, whatever kind of log they have."""
        return list(self.examples.columns)

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """What the rows were computed with; empty if unknown."""
        return tuple(map(Provenance.from_json, self.meta.get("provenance", ())))

    def count(self, layers: Sequence[str]) -> int:
        """Return the number of examples."""
        del layers
        return len(self.examples)

    def ids(self, layers: Sequence[str]) -> Ids:
        """Return the ids of all examples in order."""
        del layers
        return self.examples.ids

    def ragged(self, layers: Sequence[str]) -> list[str]:
        """Return the layers with different numbers of positions: arrays have none."""
        del layers
        return []

    def types(self, layers: Sequence[str]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return the stored dtype and shape of the rows of each layer."""
        columns = self._chosen(layers).columns
        return {name: (c.values.dtype, c.values.shape[1:]) for name, c in columns.items()}

    def blocks(
        self, layers: Sequence[str], most: int, row_bytes: int, part: tuple[int, int]
    ) -> Iterator[ExampleRows]:
        """Yield the i-th of n parts of the examples, at most ``most`` of them at a time."""
        del row_bytes
        chosen = self._chosen(layers)
        index, parts = part
        edges = np.linspace(0, len(chosen), parts + 1).astype(int)
        for start in range(edges[index], edges[index + 1], most):
            yield chosen.cut(slice(start, min(start + most, edges[index + 1])))

    def gather(self, layers: Sequence[str], ids: Any) -> ExampleRows:
        """Return the rows of these examples, in this order."""
        chosen = self._chosen(layers)
        index = {each: i for i, each in enumerate(id_list(chosen.ids))}
        missing = [each for each in id_list(ids) if each not in index]
        if missing:
            raise UnknownIdError(
                f"There are no logs of the examples {missing[:5]!r}; the ids are "
                f"{id_list(chosen.ids[:5])!r} and so on. Hint: logs.ids has all of them."
            )
        at = [index[each] for each in id_list(ids)]
        return ExampleRows(ids, {name: column.cut(at) for name, column in chosen.columns.items()})

    def state(self, layers: Sequence[str]) -> str:
        """Return a hash of the ids and rows of these layers."""
        chosen = self._chosen(layers)
        digest = hashlib.blake2b(digest_size=12)
        digest.update(repr(id_list(chosen.ids)).encode())
        for name, column in chosen.columns.items():
            for array in (column.values, column.scale):
                if array is not None:
                    digest.update(repr((name, array.shape, str(array.dtype))).encode())
                    digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def _chosen(self, layers: Sequence[str]) -> ExampleRows:
        columns = self.examples.columns
        return ExampleRows(self.examples.ids, {name: columns[name] for name in layers})


def _example_rows(arrays: Mapping[str, Any], ids: Any) -> ExampleRows:
    columns = {}
    for name, given in arrays.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in arrays:
            continue
        array, scale = to_numpy(given), arrays.get(name + SCALE)
        if not array.ndim:
            raise ArgumentError(
                f"The rows of {name!r} must be an array [examples, ...]; got a number."
            )
        columns[name] = LayerRows(array, None if scale is None else to_numpy(scale))
    if not columns:
        raise ArgumentError(
            'The dict of arrays has no layers. Hint: {"layer": rows}, with rows [examples, ...].'
        )
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(
            f"The layers have different numbers of examples: {lengths}. Hint: each array needs one "
            "row for each example."
        )
    count = next(iter(lengths.values()))
    own: Any = np.arange(count) if ids is None else np.asarray(id_list(ids))
    if len(own) != count:
        raise ArgumentError(f"There are {len(own)} ids for {count} examples.")
    if count and (own.ndim != 1 or own.dtype.kind not in "iuU"):
        raise ArgumentError(f"`ids` must be integers or strings, one per example; got {own!r}.")
    if len(set(own.tolist())) != count:
        raise ArgumentError("Some examples have the same id. Hint: give each example its own id.")
    return ExampleRows(own.tolist() if own.dtype.kind == "U" else own, columns)
