"""Constants that are the same everywhere along a dimension, as after a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sawlog.jax import _compat
from sawlog.jax._capture.axes import State
from sawlog.jax._capture.axis_rules.elementwise import is_elementwise


def uniform_dimensions(eqn: Any, states: Sequence[State]) -> frozenset[int]:
    """Return the dimensions along which the output of an equation of constants is uniform."""
    if len(eqn.outvars) != 1:
        return frozenset()
    shape = tuple(getattr(eqn.outvars[0].aval, "shape", ()))
    name = eqn.primitive.name
    if name == "iota":
        own = _compat.operated_axis(eqn)
        return frozenset(range(len(shape))) - {own}
    if name == "broadcast_in_dim":
        given = tuple(eqn.invars[0].aval.shape)
        kept = {
            dim
            for i, dim in enumerate(_compat.broadcast_dimensions(eqn))
            if given[i] == shape[dim] and i not in states[0].uniform
        }
        return frozenset(range(len(shape))) - kept
    if name == "transpose":
        order = _compat.permutation(eqn)
        return frozenset(order.index(dim) for dim in states[0].uniform)
    if is_elementwise(name):
        whole = [
            state.uniform
            for state, atom in zip(states, eqn.invars, strict=True)
            if len(atom.aval.shape) == len(shape)
        ]
        return frozenset.intersection(*whole) if shape and whole else frozenset()
    return frozenset()
