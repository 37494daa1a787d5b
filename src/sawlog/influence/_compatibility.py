"""Whether queries and examples can be compared: same layers, same shapes, same projections."""

from __future__ import annotations

from typing import Any

import numpy as np

from sawlog.capture import check_same_weights, projections_of
from sawlog.curvature._layer import same_layout
from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs

WEIGHTS = ("same", "any")
REMEDY = (
    "Their gradients do not go together. Hint: log both with the same checkpoint, one project for "
    'each; weights="any" compares them knowingly.'
)


def check_together(
    logs: Logs, asked: Logs, weights: str = "same"
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The dtypes and shapes of the rows of each layer, which queries and examples share.

    Args:
        logs, asked: examples and queries.
        weights: ``"any"`` compares rows of different weights of the model.

    Raises:
        ArgumentError: they are of different layers or shapes, or were projected differently.
        WeightsMismatchError: they were computed with different weights.
    """
    for lacking, who in (
        ([name for name in logs.layers if name not in asked.layers], "queries"),
        ([name for name in asked.layers if name not in logs.layers], "examples"),
    ):
        if lacking:
            raise ArgumentError(
                f"The {who} have no logs of the layers {', '.join(lacking[:5])}. Hint: watch the "
                "same layers, or choose some by names=."
            )
    for each in (logs, asked):
        if each.ragged:
            raise ArgumentError(
                f"The examples{_at(each)} have different numbers of positions in {each.ragged[0]!r}"
                ', so that rows cannot be compared. Hint: pool="mean", or gradients.'
            )
    there, wanted = logs.shapes(), asked.shapes()
    for name, (_, shape) in there.items():
        if not same_layout(wanted[name][1], shape):
            raise ArgumentError(
                f"The gradients of {name!r} have the shape {list(wanted[name][1])} in the queries "
                f"and {list(shape)} in the store. Hint: log both with the same compression."
            )
    check_projected(logs, asked)
    check_weights(logs, asked, weights)
    return there


def check_weights(logs: Logs, asked: Logs, weights: str) -> None:
    """Raise a WeightsMismatchError where rows come from different weights of the model."""
    if weights not in WEIGHTS:
        listed = ", ".join(map(repr, WEIGHTS))
        raise ArgumentError(f"weights is one of {listed}, got {weights!r}.")
    if weights == "same":
        ours, theirs = logs.provenance, asked.provenance
        check_same_weights(
            ours, theirs, f"the examples{_at(logs)}", f"the queries{_at(asked)}", REMEDY
        )


def check_projected(logs: Logs, asked: Logs) -> None:
    """Raise an ArgumentError where the gradients of two stores were projected differently."""
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
    if ways[0] is not None and ways[0]["kind"] == "pca" and not _same(logs, asked):
        raise ArgumentError(
            f"The examples{_at(logs)} and the queries{_at(asked)} were projected on the main "
            "directions of different covariances: their numbers mean different things. Hint: log "
            "the queries in the run of the examples."
        )


def _at(logs: Logs) -> str:
    return "" if logs.path is None else f" at {logs.path}"


def _same(one: Logs, other: Logs) -> bool:
    """Whether two logs were projected on the same directions; those of unknown ones are."""
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
