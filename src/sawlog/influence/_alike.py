"""Whether queries and examples can be compared: same layers, same shapes, same projections."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sawlog.capture import projections_of
from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs
from sawlog.store import Reader


def check_together(logs: Logs, asked: Logs) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The dtypes and shapes of the rows of each layer, which queries and examples share.

    Raises:
        ArgumentError: they are of different layers or shapes, or were projected differently.
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
    there, wanted = logs.shapes(), asked.shapes()
    for name, (_, shape) in there.items():
        if math.prod(wanted[name][1]) != math.prod(shape):
            raise ArgumentError(
                f"The gradients of {name!r} have the shape {list(wanted[name][1])} in the queries "
                f"and {list(shape)} in the store. Hint: log both with the same compression."
            )
    check_projected(logs, asked)
    return there


def check_projected(logs: Logs, asked: Logs) -> None:
    """Raise an ArgumentError where the gradients of two stores were projected differently."""
    ways = [
        each.meta["options"].get("compress") for each in (logs, asked) if "options" in each.meta
    ]
    if len(ways) < 2:
        return
    if ways[0] != ways[1]:
        raise ArgumentError(
            f"The examples {_at(logs)}were compressed by {ways[0]}, the queries {_at(asked)}by "
            f"{ways[1]}: their numbers mean different things. Hint: log both with the same "
            "compression."
        )
    if ways[0] is not None and ways[0]["kind"] == "pca" and not _same(logs.reader, asked.reader):
        raise ArgumentError(
            f"The examples {_at(logs)}and the queries {_at(asked)}were projected on the main "
            "directions of different covariances: their numbers mean different things. Hint: log "
            "the queries in the run of the examples."
        )


def _at(logs: Logs) -> str:
    return "" if logs.path is None else f"at {logs.path} "


def _same(one: Reader | None, other: Reader | None) -> bool:
    if one is None or other is None or one.id == other.id:
        return True
    ours, theirs = projections_of(one), projections_of(other)
    return ours.keys() == theirs.keys() and all(
        _equal(ours[name].left, theirs[name].left) and _equal(ours[name].right, theirs[name].right)
        for name in ours
    )


def _equal(one: Any, other: Any) -> bool:
    return one is other is None or np.array_equal(one, other)
