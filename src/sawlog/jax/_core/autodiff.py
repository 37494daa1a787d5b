"""Derivatives of functions some of whose arguments have no tangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero


def jvp_with_symbolic_zeros(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """Differentiate like ``jax.jvp``, with the tangents of ``symbolic_zeros=True``.

    Arguments with a symbolic zero are held constant: some primitives raise an error for a tangent
    that is an array of zeros.
    """
    values, tree = jax.tree.flatten(tuple(primals))
    changes = jax.tree.leaves(tuple(tangents), is_leaf=lambda x: isinstance(x, SymbolicZero))
    moving = [i for i, change in enumerate(changes) if not isinstance(change, SymbolicZero)]

    def of_moving(*some: Any) -> Any:
        full = list(values)
        for i, value in zip(moving, some, strict=True):
            full[i] = value
        return fun(*jax.tree.unflatten(tree, full))

    return jax.jvp(of_moving, [values[i] for i in moving], [changes[i] for i in moving])
