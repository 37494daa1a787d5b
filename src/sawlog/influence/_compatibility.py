"""Checks that queries and examples can be compared: same layers, shapes, projections, weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from sawlog._validate import one_of
from sawlog.curvature._layer import same_layout
from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs
from sawlog.run_files._projections import projections_of
from sawlog.run_files._provenance import check_same_weights

WEIGHTS = ("same", "any")
REMEDY = (
    "Their gradients cannot be compared. Hint: log both with the same checkpoint, one project for "
    'each; weights="any" compares them anyway.'
)


def check_together(
    logs: Logs, asked: Logs, weights: str = "same"
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Check that queries can be compared with examples.

    Args:
        logs, asked: examples and queries.
        weights: ``"any"`` compares rows of different weights of the model.

    Returns:
        The stored dtype and shape of the examples of each layer.

    Raises:
        ArgumentError: layers, shapes or projections differ.
        WeightsMismatchError: the weights of the model differ.
    """
    for missing, who in (
        ([name for name in logs.layers if name not in asked.layers], "queries"),
        ([name for name in asked.layers if name not in logs.layers], "examples"),
    ):
        if missing:
            raise ArgumentError(
                f"The {who} have no logs of the layers {', '.join(missing[:5])}. Hint: watch the "
                "same layers, or choose some by names=."
            )
    for each in (logs, asked):
        if each.ragged:
            raise ArgumentError(
                f"The examples{_at(each)} have different numbers of positions in {each.ragged[0]!r}"
                ', so their rows cannot be compared. Hint: use pool="mean", or gradients.'
            )
    stored, wanted = logs.shapes(), asked.shapes()
    for name, (_, shape) in stored.items():
        if not same_layout(wanted[name][1], shape):
            raise ArgumentError(
                f"The gradients of {name!r} have the shape {list(wanted[name][1])} in the queries "
                f"and {list(shape)} in the store. Hint: log both with the same compression."
            )
    check_projected(logs, asked)
    check_weights(logs, asked, weights)
    return stored


def check_weights(logs: Logs, asked: Logs, weights: str) -> None:
    """Raise a WeightsMismatchError if rows come from different weights of the model."""
    one_of("weights", weights, WEIGHTS)
    if weights == "same":
        ours, theirs = logs.provenance, asked.provenance
        check_same_weights(
            ours, theirs, f"the examples{_at(logs)}", f"the queries{_at(asked)}", REMEDY
        )


def check_projected(logs: Logs, asked: Logs) -> None:
    """Raise an ArgumentError if the gradients of two stores were projected differently."""
    ways = [
        each.meta["options"].get("compress") for each in (logs, asked) if "options" in each.meta
    ]
    if len(ways) < 2:
        return
    if ways[0] != ways[1]:
        raise ArgumentError(
            f"The examples{_at(logs)} were compressed by {ways[0]}, the queries{_at(asked)} by "
            f"{ways[1]}: their numbers mean different things. Hint: log both with the same "
            "compression."
        )
    if ways[0] is not None and ways[0]["kind"] == "pca" and not _same_directions(logs, asked):
        raise ArgumentError(
            f"The examples{_at(logs)} and the queries{_at(asked)} were projected on the main "
            "directions of different covariances: their numbers mean different things. Hint: log "
            "the queries in the run of the examples."
        )


def _at(logs: Logs) -> str:
    return "" if logs.path is None else f" at {logs.path}"


def _same_directions(one: Logs, other: Logs) -> bool:
    """Return whether two logs were projected on the same directions, or that is unknown."""
    ours, theirs = ({each.projection for each in logs.provenance} for logs in (one, other))
    if ours and theirs:
        return ours == theirs and len(ours) == 1
    if one.reader is None or other.reader is None or one.reader.id == other.reader.id:
        return True
    left, right = projections_of(one.reader), projections_of(other.reader)
    return left.keys() == right.keys() and all(
        _equal(left[name].left, right[name].left) and _equal(left[name].right, right[name].right)
        for name in left
    )


def _equal(one: Any, other: Any) -> bool:
    return one is other is None or np.array_equal(one, other)
