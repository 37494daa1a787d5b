"""Permutations of examples that are known when the program runs: arithmetic on their integers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Index, Known, State


def index_outputs(eqn: Any, states: Sequence[State]) -> Index | None:
    """Return whether the output of an equation is a permutation that is moved or divided."""
    name = eqn.primitive.name
    if len(eqn.outvars) != 1 or not states:
        return None
    index = states[0].index
    if name in ("convert_element_type", "copy") or (
        name in ("broadcast_in_dim", "reshape", "squeeze") and _one_column(eqn)
    ):
        return index
    if name == "select_n" and _is_false(states[0].known):
        return states[1].index
    divides = name == "div" or _compat.equation_name(eqn).endswith("'floor_divide'")
    if divides and index is not None and not index.inverse:
        by = eqn.invars[1]
        if isinstance(by, _compat.Literal) and int(by.val) > 0:
            return dataclasses.replace(index, divisor=index.divisor * int(by.val))
    return None


def stays_index(eqn: Any, i: int, states: Sequence[State]) -> bool:
    """Return whether an equation uses a permutation as an index only, not as numbers."""
    name = eqn.primitive.name
    if name == "sort" or (i == 1 and (name == "gather" or name.startswith("scatter"))):
        return True
    return index_outputs(eqn, states) is not None or is_negative(eqn, states) is not None


def _one_column(eqn: Any) -> bool:
    """Return whether an array ``[n]`` or ``[n, 1]`` becomes ``[n]`` or ``[n, 1]``."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return all(len(s) in (1, 2) and s[1:] in ((), (1,)) for s in (before, after)) and (
        before[0] == after[0]
    )


def _is_false(known: Known | None) -> bool:
    return known is not None and known.complete and not np.any(known.values)


def is_negative(eqn: Any, states: Sequence[State]) -> Known | None:
    """Return that a permutation has no negative numbers, where a program compares it with 0."""
    if eqn.primitive.name != "lt" or states[0].index is None:
        return None
    by, shape = eqn.invars[1], eqn.outvars[0].aval.shape
    if not isinstance(by, _compat.Literal) or int(by.val) != 0:
        return None
    return Known(np.zeros(shape, bool), np.ones(shape, bool))


def inverse(permutation: Any) -> Any:
    """Return the inverse of a permutation."""
    numbers = jnp.arange(permutation.shape[0], dtype=permutation.dtype)
    return jnp.zeros_like(permutation).at[permutation].set(numbers, unique_indices=True)


def row_groups(sizes: Any, count: int) -> Any:
    """Return the group of each row of a ``ragged_dot``, ``[count]``."""
    ends = jnp.cumsum(sizes)
    return jnp.searchsorted(ends, jnp.arange(count, dtype=ends.dtype), side="right")
