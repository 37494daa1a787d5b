"""Rows of logs that are in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog import store
from sawlog.errors import ArgumentError
from sawlog.influence._layer_names import gradient_layers, gradient_name
from sawlog.influence._rows import ExampleRows, Ids, LayerRows
from sawlog.run_files import ragged
from sawlog.run_files._encode import SCALE
from sawlog.run_files._provenance import Provenance, noted


class StoreSource:
    """Rows of a store, read from its memory map.

    Raises:
        ArgumentError: the store has no rows by example id.
    """

    def __init__(self, reader: store.Reader) -> None:
        self.reader = reader
        self.path = str(reader.path)
        self.layers = gradient_layers(self.known)
        if not self.layers:
            raise ArgumentError(
                f"The store at {reader.path} has no rows by example id. Hint: log some, with "
                "`with run(data_id=ids): ...`."
            )

    @property
    def known(self) -> list[str]:
        """The names of all columns by example id."""
        return [name for table in self.reader.schema.tables for name in table.names]

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the store."""
        return self.reader.meta

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """What the rows were computed with; empty if unknown."""
        return noted(self.reader)

    @property
    def files(self) -> int:
        """The number of segments."""
        return max(1, len(self.reader.segments))

    def column(self, layer: str) -> str:
        """Return the name of the column of a layer."""
        gradient = gradient_name(layer)
        return gradient if gradient in self.reader.names else layer

    def columns(self, layers: Sequence[str]) -> list[str]:
        """Return the names of the columns of layers, and of their scales."""
        names = [self.column(layer) for layer in layers]
        return names + [name + SCALE for name in names if name + SCALE in self.reader.names]

    def count(self, layers: Sequence[str]) -> int:
        """Return the number of examples."""
        return self.reader.count(self.column(layers[0]))

    def ids(self, layers: Sequence[str]) -> Ids:
        """Return the ids of all examples in order."""
        ids: Ids = self.reader.ids(self.columns(layers)[0])
        return ids

    def ragged(self, layers: Sequence[str]) -> list[str]:
        """Return the layers whose examples have different numbers of positions."""
        return [name for name in layers if ragged.is_ragged(self.reader, self.column(name))]

    def types(self, layers: Sequence[str]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return the stored dtype and shape of the rows of each layer."""
        found = {name: self.reader.schema.column(self.column(name)) for name in layers}
        return {name: (np.dtype(c.dtype), tuple(c.shape)) for name, c in found.items()}

    def blocks(
        self, layers: Sequence[str], most: int, row_bytes: int, part: tuple[int, int]
    ) -> Iterator[ExampleRows]:
        """Yield the i-th of n parts of the examples, at most ``most`` of them at a time.

        ``row_bytes`` is the stored size of an example. The reader holds twice as many, since it
        reads ahead.
        """
        budget, names = 2 * most * max(1, row_bytes), self.columns(layers)
        for block in self.reader.blocks(names, budget=budget, rows=most, part=part):
            if len(block):  # all rows of a block may have been replaced by later ones
                yield ExampleRows(block.ids, self._layer_rows(layers, block.values))

    def gather(self, layers: Sequence[str], ids: Any) -> ExampleRows:
        """Return the rows of these examples, in this order."""
        values = self.reader.gather(ids, self.columns(layers))
        return ExampleRows(ids, self._layer_rows(layers, values))

    def _layer_rows(
        self, layers: Sequence[str], values: Mapping[str, np.ndarray]
    ) -> dict[str, LayerRows]:
        names = {layer: self.column(layer) for layer in layers}
        return {n: LayerRows(values[c], values.get(c + SCALE)) for n, c in names.items()}

    def state(self, layers: Sequence[str]) -> str:
        """Return a hash of the id and the segments of the store, which changes with any row."""
        digest = hashlib.blake2b(digest_size=12)
        segments = [segment.name for segment in self.reader.segments]
        digest.update(repr((self.reader.id, self.count(layers), segments)).encode())
        return digest.hexdigest()
