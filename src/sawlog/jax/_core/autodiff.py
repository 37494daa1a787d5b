"""Derivatives of functions some of whose arguments do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero


def jvp_of_moving(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """As ``jax.jvp``, where ``tangents`` are those that ``symbolic_zeros=True`` gives.

    What does not change stays known not to: some primitives refuse a tangent of zeros there.
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
