"""Arrays with the examples as their first axis, and back."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sawlog.jax._capture.axes import Axis


def split(array: Any, axis: Axis, examples: int) -> Any:
    """Return ``[examples, *rest]``, where ``rest`` has the size of one example along the axis."""
    before, after = array.shape[: axis.dim], array.shape[axis.dim + 1 :]
    if axis.outer == 1:  # no transposition of more than one dimension
        array = jnp.reshape(array, (*before, examples, axis.inner, *after))
        return jnp.moveaxis(array, axis.dim, 0)
    array = jnp.reshape(array, (*before, axis.outer, examples, axis.inner, *after))
    array = jnp.moveaxis(array, axis.dim + 1, 0)
    return jnp.reshape(array, (examples, *before, axis.width, *after))


def placed(slices: Any, axis: Axis, examples: int) -> Any:
    """Return rows ``[examples, *shape]`` that are zero but for the slice of the example.

    Args:
        slices: ``[examples, *shape]``, with the size of one example along the axis.
        axis: Where the examples are in ``shape``.
        examples: The number of examples.
    """
    dim = axis.dim + 1
    before, after = slices.shape[1:dim], slices.shape[dim + 1 :]
    parts = jnp.reshape(slices, (examples, *before, axis.outer, 1, axis.inner, *after))
    same = jnp.eye(examples, dtype=bool)
    ones = (1,) * len(before)
    own = jnp.reshape(same, (examples, *ones, 1, examples, 1, *(1,) * len(after)))
    spread = jnp.where(own, parts, jnp.zeros((), slices.dtype))
    size = axis.width * examples
    return jnp.reshape(spread, (examples, *before, size, *after))


def masked(array: Any, axis: Axis, examples: int, example: Any) -> Any:
    """Return an array with zeros for all examples but one."""
    shape = array.shape
    before, after = shape[: axis.dim], shape[axis.dim + 1 :]
    parts = jnp.reshape(array, (*before, axis.outer, examples, axis.inner, *after))
    chosen = jnp.arange(examples) == example
    own = jnp.reshape(chosen, (*(1,) * (len(before) + 1), examples, 1, *(1,) * len(after)))
    return jnp.reshape(jnp.where(own, parts, jnp.zeros((), array.dtype)), shape)
