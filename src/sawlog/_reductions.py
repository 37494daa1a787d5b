"""The reductions by name: one table for programs on the device and for sinks on the host.

A row says what a reduction is called, which values it accepts, which step it keeps, and how it
reduces a block of entries. To add a reduction, add a row here and its streaming form to
``jax/_core/reductions.py``.

The device has a streaming form of its own for two reasons. A program sees one entry at a time and
must not hold the block. And it accumulates in float32 unless 64 bits are enabled, so that sums need
compensation, where the host simply adds in float64. Result dtypes differ for the same reason: a
program follows ``jax.numpy``, ``sinks.Reduce`` keeps the dtype of floats, and statistics over lanes
have 32 bits unless 64 were logged. Each of these callers converts before and after.

>>> values = np.array([1.0, 2.0, 6.0, 100.0])
>>> print(REDUCTION_KINDS["mean"].of_block(values, np.array([True, True, True, False])))
3.0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Where = np.ndarray | None
"""Which items count, in a shape that broadcasts to that of the values; None for all of them."""


@dataclasses.dataclass(frozen=True)
class ReductionKind:
    """One reduction.

    Args:
        name: what users write.
        of_block: ``of_block(values, where=None, axis=0)`` reduces ``values`` along ``axis``. Where
            no item counts, the result is arbitrary: the caller masks it.
        accepts: ``"any"`` dtype, ``"numbers"``, or ``"ordered"`` values: real numbers and times.
        steps: the reduction of the step numbers: ``"first"``, ``"mean"`` or ``"last"``.
    """

    name: str
    of_block: Callable[..., Any]
    accepts: str = "numbers"
    steps: str = "last"


def first(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the first item that counts."""
    if where is None:
        return np.take(values, 0, axis=axis)
    where = np.broadcast_to(where, values.shape)
    return _at(values, np.argmax(where, axis=axis), axis)


def last(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the last item that counts."""
    if where is None:
        return np.take(values, -1, axis=axis)
    where = np.flip(np.broadcast_to(where, values.shape), axis)
    return _at(values, values.shape[axis] - 1 - np.argmax(where, axis=axis), axis)


def _at(values: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    taken = np.take_along_axis(values, np.expand_dims(index, axis), axis)
    return np.squeeze(taken, axis)


def count(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the number of items that count, as int32."""
    where = np.broadcast_to(True if where is None else where, values.shape)
    return np.asarray(np.sum(where, axis=axis, dtype=np.int32))


def minimum(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the smallest item that counts."""
    return np.min(_filled(values, where, axis), axis=axis)


def maximum(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the largest item that counts."""
    return np.max(_filled(values, where, axis), axis=axis)


def _filled(values: np.ndarray, where: Where, axis: int) -> np.ndarray:
    """Replace items that do not count by one that does, which changes no minimum or maximum."""
    if where is None:
        return values
    return np.where(where, values, np.expand_dims(last(values, where, axis), axis))


def total(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the sum of the items that count."""
    return np.sum(values, axis=axis, where=True if where is None else where)


def mean(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the mean of the items that count."""
    number = values.shape[axis] if where is None else np.maximum(np.sum(where, axis=axis), 1)
    return total(values, where, axis) / number


def variance(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the variance of the items that count, divided by their number; real for complex."""
    away = values - np.expand_dims(mean(values, where, axis), axis)
    squares = (away * np.conj(away)).real if np.iscomplexobj(away) else away * away
    return mean(squares, where, axis)


def deviation(values: np.ndarray, where: Where = None, axis: int = 0) -> np.ndarray:
    """Return the square root of :func:`variance`."""
    return np.sqrt(variance(values, where, axis))


REDUCTION_KINDS: dict[str, ReductionKind] = {
    kind.name: kind
    for kind in (
        ReductionKind("mean", mean, steps="mean"),
        ReductionKind("sum", total),
        ReductionKind("min", minimum, "ordered"),
        ReductionKind("max", maximum, "ordered"),
        ReductionKind("first", first, "any", steps="first"),
        ReductionKind("last", last, "any"),
        ReductionKind("replace", last, "any"),
        ReductionKind("count", count, "any"),
        ReductionKind("std", deviation),
        ReductionKind("var", variance),
    )
}
