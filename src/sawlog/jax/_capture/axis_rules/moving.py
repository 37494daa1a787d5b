"""Operations that move, split, merge, pad or join dimensions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import ONE, Axis, Mixed, Place, Split, digits_of, joined
from sawlog.jax._capture.axis_rules.elementwise import aligned_dims, shared_axis
from sawlog.jax._capture.axis_rules.table import (
    Followed,
    FollowedOperands,
    all_mixed,
    axis_rule,
    shape_of,
)
from sawlog.jax._capture.cut_rows import selected


@axis_rule("broadcast_in_dim")
def broadcast_in_dim(eqn: Any, operands: FollowedOperands) -> Followed:
    """Move the examples to where the output has the dimension."""
    ((_, axis),) = operands.axes
    return Followed((axis.at(_compat.broadcast_dimensions(eqn)[axis.dim]),))


@axis_rule("transpose")
def transpose(eqn: Any, operands: FollowedOperands) -> Followed:
    """Permute the dimensions."""
    ((_, axis),) = operands.axes
    return Followed((axis.at(_compat.permutation(eqn).index(axis.dim)),))


@axis_rule("squeeze")
def squeeze(eqn: Any, operands: FollowedOperands) -> Followed:
    """Remove dimensions of size 1."""
    ((_, axis),) = operands.axes
    removed = {dim % len(shape_of(eqn.invars, 0)) for dim in _compat.removed_dimensions(eqn)}
    if axis.dim in removed:
        return all_mixed(eqn, "removes the dimension of the examples")
    return Followed((axis.at(axis.dim - sum(dim < axis.dim for dim in removed)),))


@axis_rule("reshape")
def reshape(eqn: Any, operands: FollowedOperands) -> Followed:
    """Split or merge dimensions; the examples may be split too."""
    (place,) = (each for each in operands.places if isinstance(each, (Axis, Split)))
    old, new = shape_of(eqn.invars, 0), shape_of(eqn.outvars, 0)
    order = _compat.reshape_order(eqn)
    if order is not None:  # the dimensions are permuted first
        old = tuple(old[dim] for dim in order)
        place = _permuted(place, tuple(order))
    return Followed((reshaped(place, old, new, operands.examples),))


def _permuted(place: Axis | Split, order: tuple[int, ...]) -> Axis | Split:
    if isinstance(place, Axis):
        return place.at(order.index(place.dim))
    parts = tuple(part.at(order.index(part.dim)) for part in place.parts)
    return Split(parts, place.sizes)


def reshaped(
    place: Axis | Split, old: tuple[int, ...], new: tuple[int, ...], examples: int
) -> Place:
    """Return where the examples are after a reshape."""
    if place == ONE:
        return ONE
    found: list[tuple[Axis, int]] = []
    for axis, size in digits_of(place, examples):
        before = math.prod(old[: axis.dim]) * axis.outer
        after = axis.inner * math.prod(old[axis.dim + 1 :])
        if axis.order is not None or size == 1:
            return _kept_whole(axis, before, after, new, size)
        digits = _digits(before * size * after, size, after, new)
        if digits is None:
            return Mixed("splits the examples in another way than into equal parts")
        found += digits
    return joined(found)


def _digits(
    total: int, size: int, after: int, shape: tuple[int, ...]
) -> list[tuple[Axis, int]] | None:
    """Return where a digit of the flat index is in a shape, split if need be.

    Args:
        total: The number of elements.
        size: The number of values of the digit.
        after: How many elements further its next value is.
        shape: The shape.
    """
    found, high = [], total
    for dim, count in enumerate(shape):
        low = high // count if count else 0
        lower, upper = max(after, low), min(after * size, high)
        if upper > lower:
            parts = ((upper, lower), (high, upper), (lower, low), (after * size, upper))
            if not low or any(a % b for a, b in (*parts, (lower, after))):
                return None
            found.append((Axis(dim, high // upper, lower // low), upper // lower))
        high = low
    return found if math.prod(each for _, each in found) == size else None


def _kept_whole(axis: Axis, before: int, after: int, new: tuple[int, ...], examples: int) -> Place:
    """Return where one example, or sorted rows, are after a reshape that does not split them."""
    found = []
    for dim, size in enumerate(new):
        outer, rest = divmod(before, max(math.prod(new[:dim]), 1))
        inner, more = divmod(after, max(math.prod(new[dim + 1 :]), 1))
        if not rest and not more and outer * examples * inner == size and size:
            found.append(Axis(dim, outer, inner))
    if axis.order is not None:  # sorted rows can only stay as they are
        found = [each for each in found if (each.outer, each.inner) == (axis.outer, axis.inner)]
        found = [dataclasses.replace(each, order=axis.order) for each in found]
    if not found:
        return Mixed("splits sorted examples, or there are no values")
    return min(found, key=lambda each: each.outer * each.inner)


@axis_rule("rev")
def rev(eqn: Any, operands: FollowedOperands) -> Followed:
    """Reverse dimensions."""
    ((_, axis),) = operands.axes
    if axis.dim in _compat.reversed_dimensions(eqn):
        size = shape_of(eqn.invars, 0)[axis.dim]
        return Followed((selected(axis, np.arange(size)[::-1], operands.examples),))
    return Followed((axis,))


@axis_rule("slice")
def slice_(eqn: Any, operands: FollowedOperands) -> Followed:
    """Slice other dimensions, or select some of the examples."""
    ((_, axis),) = operands.axes
    start, end, stride = _compat.slice_bounds(eqn)[axis.dim]
    if (start, end, stride) == (0, shape_of(eqn.invars, 0)[axis.dim], 1):
        return Followed((axis,))
    return Followed((selected(axis, np.arange(start, end, stride), operands.examples),))


@axis_rule("dynamic_slice")
def dynamic_slice(eqn: Any, operands: FollowedOperands) -> Followed:
    """Slice other dimensions, or select examples at a position that is known."""
    ((i, axis), *more) = operands.axes
    if i or more:
        return all_mixed(eqn, "slices at a position that belongs to one example")
    count, size = _compat.slice_sizes(eqn)[axis.dim], shape_of(eqn.invars, 0)[axis.dim]
    if count == size:
        return Followed((axis,))
    known = operands.known[1 + axis.dim]
    if known is None or not known.complete:
        return all_mixed(eqn, "selects some of the examples, at a position that is not known")
    start = int(np.clip(known.values, 0, size - count))
    return Followed((selected(axis, np.arange(start, start + count), operands.examples),))


@axis_rule("dynamic_update_slice", sliceable=True)
def dynamic_update_slice(eqn: Any, operands: FollowedOperands) -> Followed:
    """Replace a part of an array, the same part for all examples."""
    if any(i > 1 for i, _ in operands.axes):
        return all_mixed(eqn, "writes at a position that belongs to one example")
    axis = shared_axis(operands)
    if isinstance(axis, Axis):
        whole, update = shape_of(eqn.invars, 0), shape_of(eqn.invars, 1)
        if whole[axis.dim] != update[axis.dim]:
            return all_mixed(eqn, "replaces some of the examples")
        return Followed((axis,), _aligned(eqn, operands, axis, 2))
    return Followed((axis,))


def _aligned(eqn: Any, operands: FollowedOperands, axis: Axis, count: int) -> dict[int, Axis]:
    """Return which of the first operands are constants, with a slice for each example."""
    found = aligned_dims(eqn, operands, axis)
    return {i: each for i, each in found.items() if i < count}


@axis_rule("pad", sliceable=True)
def pad(eqn: Any, operands: FollowedOperands) -> Followed:
    """Pad other dimensions."""
    ((i, axis), *more) = operands.axes
    if i or more:
        return all_mixed(eqn, "pads with a value of one example")
    if _compat.padding(eqn)[axis.dim] != (0, 0, 0):
        return all_mixed(eqn, "pads the dimension of the examples")
    return Followed((axis,))


@axis_rule("concatenate", sliceable=True)
def concatenate(eqn: Any, operands: FollowedOperands) -> Followed:
    """Join along another dimension, or repeat the batch."""
    axis = shared_axis(operands)
    if not isinstance(axis, Axis):
        return Followed((axis,))
    if axis.dim != _compat.operated_axis(eqn):
        return Followed((axis,), aligned_dims(eqn, operands, axis))
    if len(operands.axes) < len(operands.places) or axis.order is not None:
        return all_mixed(eqn, "adds rows that are not examples to the dimension of the examples")
    return Followed((Axis(axis.dim, axis.outer * len(operands.places), axis.inner),))


@axis_rule("tile")
def tile(eqn: Any, operands: FollowedOperands) -> Followed:
    """Repeat other dimensions, or the whole batch."""
    ((_, axis),) = operands.axes
    times = _compat.repetitions(eqn)[axis.dim]
    if times > 1 and axis.order is not None:
        return all_mixed(eqn, "repeats sorted rows")
    return Followed((dataclasses.replace(axis, outer=axis.outer * times),))


@axis_rule("split")
def split(eqn: Any, operands: FollowedOperands) -> Followed:
    """Split a dimension."""
    ((_, axis),) = operands.axes
    if axis.dim == _compat.operated_axis(eqn):
        sizes = [var.aval.shape[axis.dim] for var in eqn.outvars]
        rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        return Followed(tuple(selected(axis, each, operands.examples) for each in rows))
    return Followed((axis,) * len(eqn.outvars))


@axis_rule("stack", sliceable=True)
def stack(eqn: Any, operands: FollowedOperands) -> Followed:
    """Join along a new dimension."""
    axis = shared_axis(operands)
    if not isinstance(axis, Axis):
        return Followed((axis,))
    new = _compat.operated_axis(eqn)
    constant = [i for i, place in enumerate(operands.places) if place is None]
    return Followed((axis.at(axis.dim + (axis.dim >= new)),), dict.fromkeys(constant, axis))


@axis_rule("unstack")
def unstack(eqn: Any, operands: FollowedOperands) -> Followed:
    """Return the slices along a dimension."""
    ((_, axis),) = operands.axes
    removed = _compat.operated_axis(eqn)
    if axis.dim == removed:
        rows = range(len(eqn.outvars))
        return Followed(tuple(selected(axis, [row], operands.examples) for row in rows))
    return Followed((axis.at(axis.dim - (axis.dim > removed)),) * len(eqn.outvars))


@axis_rule("bitcast_convert_type")
def bitcast(eqn: Any, operands: FollowedOperands) -> Followed:
    """Change the type of elements; the last dimension may appear or disappear."""
    ((_, axis),) = operands.axes
    if axis.dim >= len(shape_of(eqn.outvars, 0)):
        return all_mixed(eqn, "removes the dimension of the examples")
    return Followed((axis,))
