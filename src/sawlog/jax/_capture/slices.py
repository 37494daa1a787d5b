"""Arrays with the examples as their first axis, and back."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax._capture.axes import Axis, Split


def split(array: Any, place: Axis | Split, examples: int) -> Any:
    """Return ``[examples, *rest]``, where ``rest`` has the size of one example along the axis."""
    if isinstance(place, Axis):
        return _split(array, place, examples)
    rank = array.ndim
    for count, (axis, size) in enumerate(place.successive()):
        array = jnp.moveaxis(_split(array, axis.at(axis.dim + count), size), 0, count)
    return jnp.reshape(array, (examples, *array.shape[array.ndim - rank :]))


def _split(array: Any, axis: Axis, examples: int) -> Any:
    before, after = array.shape[: axis.dim], array.shape[axis.dim + 1 :]
    if axis.outer == 1:  # no transposition of more than one dimension
        if axis.inner == 1:
            array = jnp.expand_dims(array, axis.dim + 1)
        else:
            array = jnp.reshape(array, (*before, examples, axis.inner, *after))
        return jnp.moveaxis(array, axis.dim, 0)
    array = jnp.reshape(array, (*before, axis.outer, examples, axis.inner, *after))
    array = jnp.moveaxis(array, axis.dim + 1, 0)
    return jnp.reshape(array, (examples, *before, axis.width, *after))


def placed(slices: Any, place: Axis | Split, examples: int) -> Any:
    """Return rows ``[examples, *shape]`` that are zero but for the slice of the example.

    Args:
        slices: ``[examples, *shape]``, with the size of one example along the axis.
        place: Where the examples are in ``shape``.
        examples: The number of examples.
    """
    if isinstance(place, Axis):
        return _placed(slices, place, examples)
    count = len(place.sizes)
    array = jnp.reshape(slices, (*place.sizes, *slices.shape[1:]))
    for digit, (axis, size) in reversed([*enumerate(place.successive())]):
        place_one = functools.partial(_placed, axis=axis, examples=size)
        for _ in range(count - 1):
            place_one = jax.vmap(place_one)
        moved = place_one(jnp.moveaxis(array, digit, count - 1))
        array = jnp.moveaxis(moved, count - 1, digit)
    return jnp.reshape(array, (examples, *array.shape[count:]))


def _placed(slices: Any, axis: Axis, examples: int) -> Any:
    dim = axis.dim + 1
    before, after = slices.shape[1:dim], slices.shape[dim + 1 :]
    parts = jnp.reshape(slices, (examples, *before, axis.outer, 1, axis.inner, *after))
    same = jnp.eye(examples, dtype=bool)
    ones = (1,) * len(before)
    own = jnp.reshape(same, (examples, *ones, 1, examples, 1, *(1,) * len(after)))
    spread = jnp.where(own, parts, jnp.zeros((), slices.dtype))
    size = axis.width * examples
    return jnp.reshape(spread, (examples, *before, size, *after))


def masked(array: Any, place: Axis | Split, examples: int, example: Any) -> Any:
    """Return an array with zeros for all examples but one."""
    if isinstance(place, Axis):
        return _masked(array, place, examples, example)
    for i, (axis, size) in enumerate(zip(place.parts, place.sizes, strict=True)):
        digit = example // math.prod(place.sizes[i + 1 :]) % size
        array = _masked(array, axis, size, digit)
    return array


def _masked(array: Any, axis: Axis, examples: int, example: Any) -> Any:
    shape = array.shape
    before, after = shape[: axis.dim], shape[axis.dim + 1 :]
    parts = jnp.reshape(array, (*before, axis.outer, examples, axis.inner, *after))
    chosen = jnp.arange(examples) == example
    own = jnp.reshape(chosen, (*(1,) * (len(before) + 1), examples, 1, *(1,) * len(after)))
    return jnp.reshape(jnp.where(own, parts, jnp.zeros((), array.dtype)), shape)
