"""Gather and scatter: windows of an array at indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Known, Place
from sawlog.jax._capture.axis_rules.table import (
    Followed,
    Operands,
    all_mixed,
    axis_rule,
    shape_of,
)

_CHOOSES = "selects rows by an index that may be that of another example"


@axis_rule("gather", sliceable=True)
def gather(eqn: Any, operands: Operands) -> Followed:
    """Follow the examples of the operand, of the indices, or of both."""
    dims = _compat.Gather.read(eqn)
    operand, indices = operands.places
    rank = len(shape_of(eqn.outvars, 0))
    batch = [dim for dim in range(rank) if dim not in dims.offset]  # those of the indices, in order
    found: list[Place] = []
    aligned: dict[int, Axis] = {}
    if isinstance(indices, Axis):
        if indices.dim == len(shape_of(eqn.invars, 1)) - 1:
            return all_mixed(eqn, "uses examples as the parts of one index")
        found.append(indices.at(batch[indices.dim]))
        for own, other in dims.batching:
            if other == indices.dim and operand is None:
                aligned[0] = indices.at(own)
    if isinstance(operand, Axis):
        place = _from_operand(eqn, dims, operands, operand, batch)
        if place is None:
            return all_mixed(eqn, _CHOOSES)
        found.append(place)
    if len(found) == 2 and found[0] != found[1]:
        return all_mixed(eqn, "looks up every example of the batch for every other one")
    return Followed((found[0],), aligned)


def _from_operand(
    eqn: Any, dims: _compat.Gather, operands: Operands, axis: Axis, batch: list[int]
) -> Axis | None:
    """Return where the examples of the operand are in the output; None if that is unknown."""
    whole = shape_of(eqn.invars, 0)
    for own, other in dims.batching:
        if own == axis.dim:
            return axis.at(batch[other])
    if axis.dim in dims.indexed:
        if dims.sizes[axis.dim] == whole[axis.dim] and axis.dim not in dims.collapsed:
            return axis.at(_window(dims, axis.dim, len(whole)))  # an index can only be 0
        if dims.sizes[axis.dim] != 1 or axis.dim not in dims.collapsed:
            return None
        known, column = operands.known[1], dims.indexed.index(axis.dim)
        return _numbered(known, column, axis, operands.examples, batch)
    if dims.sizes[axis.dim] != whole[axis.dim] or axis.dim in dims.collapsed:
        return None
    return axis.at(_window(dims, axis.dim, len(whole)))


def _window(dims: _compat.Gather, dim: int, rank: int) -> int:
    """Return where the output has a dimension of the operand that windows keep."""
    paired = {own for own, _ in dims.batching}
    kept = [d for d in range(rank) if d not in dims.collapsed and d not in paired]
    return dims.offset[kept.index(dim)]


def _numbered(
    known: Known | None, column: int, axis: Axis, examples: int, batch: list[int]
) -> Axis | None:
    """Return where the output has the examples that a known index selects in their order.

    Such an index is ``arange(examples)`` along one of its dimensions.
    """
    if known is None or not known.mask[..., column].all():
        return None
    numbers = np.asarray(known.values[..., column])
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= axis.width * examples:
        return None
    of_example = numbers // axis.inner % examples
    for dim, size in enumerate(numbers.shape):
        if size % examples:
            continue
        for inner in _divisors(size // examples):
            along = np.arange(size) // inner % examples
            shape = [size if d == dim else 1 for d in range(numbers.ndim)]
            if (of_example == along.reshape(shape)).all():
                return Axis(batch[dim], size // examples // inner, inner)
    return None


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


@axis_rule("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min")
def scatter(eqn: Any, operands: Operands) -> Followed:
    """Follow the examples of what is changed, of the indices, and of the updates."""
    dims = _compat.Scatter.read(eqn)
    operand, indices, updates = operands.places
    rank, count = len(shape_of(eqn.invars, 0)), len(shape_of(eqn.invars, 2))
    batch = [dim for dim in range(count) if dim not in dims.window]  # those of the indices
    found: list[Axis] = [operand] if isinstance(operand, Axis) else []
    if isinstance(indices, Axis):
        if indices.dim == len(shape_of(eqn.invars, 1)) - 1:
            return all_mixed(eqn, "uses examples as the parts of one index")
        at_updates = indices.at(batch[indices.dim])
        if isinstance(updates, Axis) and updates != at_updates:
            return all_mixed(eqn, "writes every example of the batch for every other one")
        updates = at_updates
    if isinstance(updates, Axis):
        place = _of_updates(eqn, dims, operands, updates, batch, rank)
        if place is None:
            return all_mixed(eqn, "writes rows at an index that may be that of another example")
        found.append(place)
    elif isinstance(operand, Axis) and not _whole(eqn, dims, operand, rank):
        return all_mixed(eqn, "writes to some of the examples")
    if len({*found}) > 1:
        return all_mixed(eqn, "writes every example of the batch for every other one")
    return Followed((found[0],))


def _whole(eqn: Any, dims: _compat.Scatter, axis: Axis, rank: int) -> bool:
    """Return whether updates without examples change all examples in the same way."""
    if axis.dim in dims.inserted or axis.dim in {own for own, _ in dims.batching}:
        return False
    update = dims.window[_kept(dims, rank).index(axis.dim)]
    return shape_of(eqn.invars, 2)[update] == shape_of(eqn.invars, 0)[axis.dim]


def _kept(dims: _compat.Scatter, rank: int) -> list[int]:
    paired = {own for own, _ in dims.batching}
    return [d for d in range(rank) if d not in dims.inserted and d not in paired]


def _of_updates(
    eqn: Any, dims: _compat.Scatter, operands: Operands, axis: Axis, batch: list[int], rank: int
) -> Axis | None:
    """Return where the result has the examples of the updates; None if that is unknown."""
    whole = shape_of(eqn.invars, 0)
    if axis.dim in dims.window:
        own = _kept(dims, rank)[dims.window.index(axis.dim)]
        return axis.at(own) if whole[own] == shape_of(eqn.invars, 2)[axis.dim] else None
    for own, other in dims.batching:
        if batch[other] == axis.dim:
            return axis.at(own)
    known = operands.known[1]
    for column, own in enumerate(dims.indexed):
        size = whole[own]
        if own not in dims.inserted or size % operands.examples:
            continue
        for inner in _divisors(size // operands.examples):
            at = Axis(own, size // operands.examples // inner, inner)
            if _numbered(known, column, at, operands.examples, batch) == axis:
                return at
    return None
