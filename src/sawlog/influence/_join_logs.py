"""Joining the logs of several batches of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.influence._layer_names import gradient_name
from sawlog.influence._memory_source import MemorySource
from sawlog.influence._rows import id_list
from sawlog.run_files._provenance import check_same_weights

if TYPE_CHECKING:
    from sawlog.influence._logs import Logs


def join_arguments(logs: Sequence[Logs]) -> dict[str, Any]:
    """Return the arguments of :class:`Logs` that hold the rows of several logs in memory.

    Raises:
        ArgumentError: logs are in a store, or have different layers, compression or shapes.
        WeightsMismatchError: they come from different weights of the model.
    """
    sources = [_in_memory(each) for each in logs]
    for other in sources[1:]:
        _check_joinable(sources[0], other)
    first = sources[0]
    arrays: dict[str, np.ndarray] = {}
    for layer in first.known:
        columns = [source.examples.columns[layer] for source in sources]
        rows = [c.values if c.scale is None else c.rows() for c in columns]
        label = gradient_name(layer) if layer in first.gradients else layer
        arrays[label] = np.concatenate(_pad_positions(layer, rows))
    ids = [each for source in sources for each in id_list(source.examples.ids)]
    return {"source": arrays, "ids": ids, "meta": first.meta}


def _in_memory(logs: Logs) -> MemorySource:
    if not isinstance(logs.source, MemorySource):
        raise ArgumentError(
            "Logs in a store cannot be joined with others. Hint: write all rows into one store."
        )
    return logs.source


def _check_joinable(one: MemorySource, other: MemorySource) -> None:
    if one.examples.columns.keys() != other.examples.columns.keys():
        raise ArgumentError(
            "Logs of different layers cannot be joined. Hint: choose the same layers of both by "
            "Logs(source, names=[...])."
        )
    ways = [each.meta.get("options", {}).get("compress") for each in (one, other)]
    projections = [{own.projection for own in each.provenance} for each in (one, other)]
    if ways[0] != ways[1] or projections[0] != projections[1]:
        raise ArgumentError(
            f"Logs compressed by {ways[0]} and by {ways[1]} cannot be joined: their numbers mean "
            "different things. Hint: log all of them with the same compress=."
        )
    hint = "Hint: log all queries with the same checkpoint."
    check_same_weights(one.provenance, other.provenance, "some logs", "others", hint)


def _pad_positions(layer: str, several: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Pad arrays ``[n, positions, ...]`` with zeros to the greatest number of positions."""
    shapes = {each.shape[1:] for each in several}
    if len(shapes) == 1:
        return list(several)
    if min(each.ndim for each in several) < 2 or len({shape[1:] for shape in shapes}) > 1:
        raise ArgumentError(f"The rows of {layer!r} have different shapes: {sorted(shapes)}.")
    most = max(shape[0] for shape in shapes)
    return [
        np.pad(each, [(0, 0), (0, most - each.shape[1])] + [(0, 0)] * (each.ndim - 2))
        for each in several
    ]
