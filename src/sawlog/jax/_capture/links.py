"""Identities and zeros with a backward pass of their own.

The rows of per-example gradients leave a program as cotangents of zeros. Two functions connect
values and zeros:

- ``attach(outputs, zeros, ...)`` returns the outputs; backwards it computes, from their cotangents,
  what the zeros receive.
- ``link(zeros, ...)`` returns other zeros; backwards it maps what these receive to the former.

Neither computes anything in the forward pass.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
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
    axes = example_axes() | _compat.varying_axes(core)
    linked.defvjp(forward, backward)
    return linked(tuple(zeros), residuals)


def _typed(values: Sequence[Any], types: Sequence[Any]) -> tuple[Any, ...]:
    """Return values in the types of the arrays that receive them."""
    found = []
    for value, kind in zip(values, types, strict=True):
        if value.shape != kind.shape:
            value = jnp.reshape(value, kind.shape)
        value = arrays.reshard(value.astype(kind.dtype), kind)
        axes = _compat.varying_axes(kind)
        if more := tuple(sorted(_compat.varying_axes(value) - axes)):
            value = jax.lax.psum(value, more)
        found.append(_compat.make_varying(value, axes))
    return tuple(found)


def for_examples(examples: Any, core: Any) -> arrays.Type:
    """Return the type of one gradient of a value for each example.

    Args:
        examples: The type ``[examples]``, with the sharding of the examples.
        core: The value. Where it is sharded as the examples are, its gradients are not; nor are
            they where all axes of the mesh are automatic.
    """
    if arrays.is_of_auto_axes(core):
        return arrays.Type((*examples.shape, *core.shape), core.dtype)
    return arrays.under_first(examples, core)


def varying(operands: Any, axes: frozenset[str]) -> Any:
    """Return operands that vary over the axes of a mesh over which the examples are spread.

    Inside of ``shard_map``, the gradient of a value that is the same on all devices is a sum over
    the devices, which have different examples; that of a value that may vary is not.
    """
    if not axes:
        return operands
    return jax.tree.map(lambda x: _compat.make_varying(x, axes), operands)


def evaluate_varying(fun: Callable[..., Any], types: Sequence[Any], *values: Any) -> list[Any]:
    """Evaluate a function inside of ``shard_map``, on values that vary over more axes.

    The function is traced at its own types, for which it is the same on all devices. Then it is
    evaluated for the values of each device, without communication between devices.
    """
    closed = _compat.trace_flat(fun, types, "a derivative")
    return _evaluated(closed.jaxpr, closed.consts, values)


def _evaluated(jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *values), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _compat.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        given = list(map(read, eqn.invars))
        axes = frozenset().union(*map(_compat.varying_axes, given))
        if eqn.primitive.name in ("jit", "pjit"):
            inner = _compat.inner_jaxpr(eqn)
            outs = _evaluated(inner.jaxpr, inner.consts, given)
        else:
            outs = _compat.bind_equation(eqn, [_compat.make_varying(x, axes) for x in given])
        known.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


_spread: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "spread", default=frozenset()
)


def example_axes() -> frozenset[str]:
    """Return the axes of a mesh over which examples are spread, where types show it."""
    return _spread.get()


@contextlib.contextmanager
def spread_over(axes: frozenset[str]) -> Iterator[None]:
    """Evaluate a function of ``shard_map`` whose examples are spread over these axes too."""
    token = _spread.set(_spread.get() | axes)
    try:
        yield
    finally:
        _spread.reset(token)
