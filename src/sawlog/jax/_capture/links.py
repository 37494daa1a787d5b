"""Identities and zeros with a backward pass of their own.

The rows of per-example gradients leave a program as cotangents of zeros. Two functions connect
values and zeros:

- ``attach(outputs, zeros, ...)`` returns the outputs; backwards it computes, from their cotangents,
  what the zeros receive.
- ``link(zeros, ...)`` returns other zeros; backwards it maps what these receive to the former.

Neither computes anything in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax import _compat
from sawlog.jax._core import arrays

Back = Callable[[Any, Any], Sequence[Any]]


def attach(outputs: Sequence[Any], zeros: Sequence[Any], residuals: Any, back: Back) -> list[Any]:
    """Return the outputs, whose cotangents determine those of ``zeros``.

    Args:
        outputs: Arrays.
        zeros: Arrays that receive something.
        residuals: A pytree of arrays that ``back`` needs.
        back: Maps the cotangents of the outputs and the residuals to the cotangents of ``zeros``.
    """

    @jax.custom_vjp
    def attached(outputs: Any, zeros: Any, residuals: Any) -> Any:
        del zeros, residuals
        return outputs

    def forward(outputs: Any, zeros: Any, residuals: Any) -> Any:
        del zeros
        return outputs, residuals

    def backward(residuals: Any, cotangents: Any) -> Any:
        return cotangents, _typed(back(cotangents, residuals), zeros_types), None

    zeros_types = list(map(_compat.typeof, zeros))
    attached.defvjp(forward, backward)
    return list(attached(tuple(outputs), tuple(zeros), residuals))


def link(zeros: Sequence[Any], core: Any, residuals: Any, back: Back) -> Any:
    """Return zeros whose cotangent determines those of other zeros.

    Args:
        zeros: The other zeros.
        core: An array, or a type; the result receives its gradient for each example.
        residuals: A pytree of arrays that ``back`` needs.
        back: Maps the cotangent of the result and the residuals to the cotangents of ``zeros``.
    """

    @jax.custom_vjp
    def linked(zeros: Any, residuals: Any) -> Any:
        del zeros, residuals
        return _compat.make_varying(arrays.zeros(kind), axes)

    def forward(zeros: Any, residuals: Any) -> Any:
        del zeros
        return _compat.make_varying(arrays.zeros(kind), axes), residuals

    def backward(residuals: Any, cotangent: Any) -> Any:
        return _typed(back(cotangent, residuals), zeros_types), None

    kind = for_examples(arrays.leading(zeros[0], 1), core)
    zeros_types = list(map(_compat.typeof, zeros))
    axes = frozenset().union(*map(_compat.varying_axes, zeros_types))
    linked.defvjp(forward, backward)
    return linked(tuple(zeros), residuals)


def _typed(values: Sequence[Any], types: Sequence[Any]) -> tuple[Any, ...]:
    """Return values in the types of the arrays that receive them."""
    found = []
    for value, kind in zip(values, types, strict=True):
        if value.shape != kind.shape:
            value = jnp.reshape(value, kind.shape)
        value = arrays.reshard(value.astype(kind.dtype), kind)
        found.append(_compat.make_varying(value, _compat.varying_axes(kind)))
    return tuple(found)


def for_examples(examples: Any, core: Any) -> arrays.Type:
    """Return the type of one gradient of a value for each example.

    Args:
        examples: The type ``[examples]``, with the sharding of the examples.
        core: The value. Where it is sharded as the examples are, its gradients are not.
    """
    return arrays.under_first(examples, core)


def varying_like(cotangents: Any, operands: Any) -> Any:
    """Return operands that vary over the same axes of a mesh as cotangents.

    Inside of ``shard_map``, the gradient of a value that is the same on all devices is a sum over
    the devices, which have different examples; that of a value that may vary is not.
    """
    leaves = jax.tree.leaves(cotangents)
    axes = frozenset().union(*map(_compat.varying_axes, leaves))
    if not axes:
        return operands
    return jax.tree.map(lambda x: _compat.make_varying(x, axes), operands)
