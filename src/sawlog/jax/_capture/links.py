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

    zeros_types = [(zero.shape, zero.dtype) for zero in zeros]
    attached.defvjp(forward, backward)
    return list(attached(tuple(outputs), tuple(zeros), residuals))


def link(zeros: Sequence[Any], shape: Sequence[int], dtype: Any, residuals: Any, back: Back) -> Any:
    """Return zeros whose cotangent determines those of other zeros.

    Args:
        zeros: The other zeros.
        shape: The shape of the result.
        dtype: The dtype of the result.
        residuals: A pytree of arrays that ``back`` needs.
        back: Maps the cotangent of the result and the residuals to the cotangents of ``zeros``.
    """

    @jax.custom_vjp
    def linked(zeros: Any, residuals: Any) -> Any:
        del zeros, residuals
        return jnp.zeros(shape, dtype)

    def forward(zeros: Any, residuals: Any) -> Any:
        del zeros
        return jnp.zeros(shape, dtype), residuals

    def backward(residuals: Any, cotangent: Any) -> Any:
        return _typed(back(cotangent, residuals), zeros_types), None

    zeros_types = [(zero.shape, zero.dtype) for zero in zeros]
    linked.defvjp(forward, backward)
    return linked(tuple(zeros), residuals)


def _typed(values: Sequence[Any], types: Sequence[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Return values in the shapes and dtypes of the arrays that receive them."""
    pairs = zip(values, types, strict=True)
    return tuple(jnp.reshape(value, shape).astype(dtype) for value, (shape, dtype) in pairs)
