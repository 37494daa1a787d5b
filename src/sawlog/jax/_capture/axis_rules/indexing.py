"""Gather and scatter: windows of an array at indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Known, Mixed, Place
from sawlog.jax._capture.axis_rules.table import (
    Followed,
    FollowedOperands,
    all_mixed,
    axis_rule,
    shape_of,
)
from sawlog.jax._capture.cut_rows import place_of

_RANKED = "uses the rank of an example among the others"
_CHOOSES = "selects rows by an index that may be that of another example"


@axis_rule("gather", sliceable=True)
def gather(eqn: Any, operands: FollowedOperands) -> Followed:
    """Follow the examples of the operand, of the indices, or of both."""
    dims = _compat.Gather.read(eqn)
    operand, indices = operands.places
    rank = len(shape_of(eqn.outvars, 0))
    batch = [dim for dim in range(rank) if dim not in dims.offset]  # those of the indices, in order
    found: list[Place] = []
    aligned: dict[int, Axis] = {}
    if operands.indices[1] is not None:
        by_order = None
        if isinstance(operand, Axis):
            by_order = _by_order(eqn, dims, operands, operand, batch)
        return all_mixed(eqn, _RANKED) if by_order is None else Followed((by_order,))
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


def _by_order(
    eqn: Any, dims: _compat.Gather, operands: FollowedOperands, axis: Axis, batch: list[int]
) -> Axis | None:
    """Return where the output has rows that a permutation selects; None for another index."""
    index, place = operands.indices[1], operands.places[1]
    if index is None or not isinstance(place, Axis) or len(dims.indexed) != 1:
        return None
    if dims.indexed != (axis.dim,) or dims.collapsed != dims.indexed or place.dim != 0:
        return None
    if index.inverse:
        rows = (axis.outer, axis.inner) == (place.outer, place.inner)
        return place.at(batch[0]) if rows and axis.order == index.order else None
    rows = axis.outer == place.outer and axis.inner * index.divisor == place.inner
    return place.at(batch[0]) if rows and axis.order is None else None


def _from_operand(
    eqn: Any, dims: _compat.Gather, operands: FollowedOperands, axis: Axis, batch: list[int]
) -> Place:
    """Return where the examples of the operand are in the output; None if that is unknown."""
    whole = shape_of(eqn.invars, 0)
    if axis.order is not None and axis.dim in dims.indexed:
        return None
    for own, other in dims.batching:
        if own == axis.dim:
            return axis.at(batch[other])
    if axis.dim in dims.indexed:
        if dims.sizes[axis.dim] == whole[axis.dim] and axis.dim not in dims.collapsed:
            return axis.at(_window(dims, axis.dim, len(whole)))  # an index can only be 0
        if dims.sizes[axis.dim] != 1:
            return None
        known, column = operands.known[1], dims.indexed.index(axis.dim)
        given = known, column, axis, operands.examples, batch
        return _numbered(*given) or _chosen(*given)
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


def _chosen(known: Known | None, column: int, axis: Axis, examples: int, batch: list[int]) -> Place:
    """Return the place of examples that a known index selects, along one of its dimensions."""
    if known is None or not known.mask[..., column].all() or axis.order is not None:
        return None
    numbers = np.asarray(known.values[..., column])
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= axis.width * examples:
        return None
    of_example = numbers // axis.inner % examples
    if not numbers.ndim:
        return place_of([of_example], 0, examples)
    for dim in range(numbers.ndim):
        line = np.moveaxis(of_example, dim, 0).reshape(numbers.shape[dim], -1)
        if line.size and (line == line[:, :1]).all():
            found = place_of(line[:, 0], batch[dim], examples)
            return None if isinstance(found, Mixed) else found
    return None


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


@axis_rule(
    "scatter",
    *(f"scatter{mark}{kind}" for mark in "-_" for kind in ("add", "sub", "mul", "min", "max")),
    sliceable=True,
)
def scatter(eqn: Any, operands: FollowedOperands) -> Followed:
    """Follow the examples of what is changed, of the indices, and of the updates."""
    dims = _compat.Scatter.read(eqn)
    operand, indices, updates = operands.places
    rank, count = len(shape_of(eqn.invars, 0)), len(shape_of(eqn.invars, 2))
    batch = [dim for dim in range(count) if dim not in dims.window]  # those of the indices
    found: list[Axis] = [operand] if isinstance(operand, Axis) else []
    if operands.indices[1] is not None and not _is_sorted(updates):
        return all_mixed(eqn, _RANKED)
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
    elif isinstance(operand, Axis):
        update = _window_of(eqn, dims, operand, rank)
        if update is None:
            return all_mixed(eqn, "writes to some of the examples")
        return Followed((operand,), {2: operand.at(update)})
    if len({*found}) > 1:
        return all_mixed(eqn, "writes every example of the batch for every other one")
    numbered = isinstance(updates, Axis) and not _is_direct(dims, updates, batch)
    aligned = {0: found[0]} if operand is None and not numbered else {}
    return Followed((found[0],), aligned, sliceable=not numbered)


def _is_sorted(place: Place) -> bool:
    return isinstance(place, Axis) and place.order is not None


def _is_direct(dims: _compat.Scatter, axis: Axis, batch: list[int]) -> bool:
    """Return whether the examples of updates are paired with dimensions, not by numbers."""
    return axis.dim in dims.window or any(batch[other] == axis.dim for _, other in dims.batching)


def _window_of(eqn: Any, dims: _compat.Scatter, axis: Axis, rank: int) -> int | None:
    """Return the dimension of updates that changes all examples, each with its own slice."""
    if axis.dim in dims.inserted or axis.dim in {own for own, _ in dims.batching}:
        return None
    update = dims.window[_kept(dims, rank).index(axis.dim)]
    same = shape_of(eqn.invars, 2)[update] == shape_of(eqn.invars, 0)[axis.dim]
    return update if same else None


def _kept(dims: _compat.Scatter, rank: int) -> list[int]:
    paired = {own for own, _ in dims.batching}
    return [d for d in range(rank) if d not in dims.inserted and d not in paired]


def _of_updates(
    eqn: Any,
    dims: _compat.Scatter,
    operands: FollowedOperands,
    axis: Axis,
    batch: list[int],
    rank: int,
) -> Axis | None:
    """Return where the result has the examples of the updates; None if that is unknown."""
    whole = shape_of(eqn.invars, 0)
    if axis.dim in dims.window:
        own = _kept(dims, rank)[dims.window.index(axis.dim)]
        return axis.at(own) if whole[own] == shape_of(eqn.invars, 2)[axis.dim] else None
    for own, other in dims.batching:
        if batch[other] == axis.dim:
            return axis.at(own)
    if axis.order is not None:
        return _back_in_order(dims, operands, axis, batch, whole)
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


def _back_in_order(
    dims: _compat.Scatter,
    operands: FollowedOperands,
    axis: Axis,
    batch: list[int],
    whole: tuple[int, ...],
) -> Axis | None:
    """Return where sorted rows are after they are written to where they came from."""
    index = operands.indices[1]
    if index is None or index.inverse or index.order != axis.order or len(dims.indexed) != 1:
        return None
    own = dims.indexed[0]
    inner, rest = divmod(axis.inner, index.divisor)
    fits = not rest and whole[own] == axis.outer * operands.examples * inner
    if not fits or own not in dims.inserted or axis.dim != batch[0]:
        return None
    return Axis(own, axis.outer, inner)
