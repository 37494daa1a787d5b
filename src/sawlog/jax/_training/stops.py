"""Derivatives of a step as it runs, also where its loss stops gradients.

``stop_gradient`` in a loss decides which updates a step applies: those towards a target that the
model computes itself, say. What the step does still depends on the stopped values. Once the
gradient of the loss is taken, they are followed as any others are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from sawlog.jax._compat import subjaxprs, without_stops

#: Operations whose gradient may not be the derivative of what they compute.
_CHOSEN = ("stop_gradient", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def with_stops_followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the identity for each ``stop_gradient`` that is left in it."""

    def wrapped(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        followed = without_stops(closed)
        if followed is closed:
            return function(*args)
        outs = jaxpr_as_fun(followed)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return wrapped


def chooses_gradients(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether an operation of a function may have a gradient that is not its derivative."""
    return _has_chosen(jax.make_jaxpr(function)(*args))


def _has_chosen(jaxpr: Any) -> bool:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name in _CHOSEN or any(map(_has_chosen, subjaxprs(eqn.params))):
            return True
    return False
