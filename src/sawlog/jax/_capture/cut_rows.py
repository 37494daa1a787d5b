"""Which examples the rows of a dimension belong to, where some of the examples are selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sawlog.jax._capture.axes import ONE, Axis, CutBatch, Mixed, Place, Split


def numbers_of(place: Place, dim: int, size: int, examples: int) -> Any:
    """Return the number of the example of each row along a dimension; None if rows have none.

    Args:
        place: Where the examples are.
        dim: The dimension.
        size: Its size.
        examples: The number of examples of the batch.
    """
    chosen = np.asarray(place.chosen) if isinstance(place, CutBatch) else np.arange(examples)
    inner = place.place if isinstance(place, CutBatch) else place
    if inner == ONE:
        return np.repeat(chosen, size)
    if not isinstance(inner, Axis) or inner.dim != dim or inner.order is not None:
        return None
    return chosen[np.arange(size) // inner.inner % len(chosen)]


def place_of(numbers: Any, dim: int, examples: int) -> Place:
    """Return the place of an array whose rows along a dimension belong to these examples.

    Args:
        numbers: The number of the example of each row.
        dim: The dimension.
        examples: The number of examples of the batch.
    """
    numbers = np.asarray(numbers)
    if not len(numbers):
        return Mixed("selects none of the examples")
    if (numbers == numbers[0]).all():
        return whole_or_cut(ONE, (int(numbers[0]),), examples)
    ends = np.flatnonzero(np.diff(numbers)) + 1
    inner = math.gcd(*(int(n) for n in np.diff([0, *ends, len(numbers)])))
    steps = numbers[::inner]
    period = next(
        n
        for n in range(1, len(steps) + 1)
        if len(steps) % n == 0 and (steps.reshape(-1, n) == steps[:n]).all()
    )
    chosen = tuple(int(n) for n in steps[:period])
    if len(set(chosen)) < period:
        return Mixed("holds some of the examples more often than others")
    return whole_or_cut(Axis(dim, len(steps) // period, inner), chosen, examples)


def whole_or_cut(
    place: Axis | Split, chosen: Sequence[int], examples: int, where: str = ""
) -> Axis | Split | CutBatch:
    """Return the place itself if all examples are chosen in their order."""
    if tuple(chosen) == tuple(range(examples)):
        return place
    return CutBatch(place, tuple(chosen), where)


def selected(axis: Axis, rows: Any, examples: int) -> Place:
    """Return the place of some rows of the dimension of the examples, by their positions."""
    if axis.order is not None:
        return Mixed("selects some of the examples after sorting them")
    return place_of(np.asarray(rows) // axis.inner % examples, axis.dim, examples)


def completed(numbers: Any, examples: int) -> Any:
    """Return numbers without gaps; None if they are not those of the whole batch.

    Rows with the number -1 are constants, which may be those of any example.
    """
    numbers = np.asarray(numbers)
    if not (numbers < 0).any():
        return numbers
    inner, rest = divmod(len(numbers), examples)
    batch = np.arange(len(numbers)) // max(inner, 1)
    fits = (numbers < 0) | (numbers == batch)
    return batch if not rest and inner and fits.all() else None
