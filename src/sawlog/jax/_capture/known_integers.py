"""Integers that are known when a program is traced: index arithmetic on ``arange``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Known, State

#: Larger arrays are not followed.
_MOST = 1 << 22


def known_outputs(eqn: Any, states: Sequence[State]) -> list[Known | None]:
    """Return what is known of the integers that an equation computes, for each output."""
    nothing: list[Known | None] = [None] * len(eqn.outvars)
    name = eqn.primitive.name
    if len(eqn.outvars) != 1 or not _followed(eqn.outvars[0].aval):
        return nothing
    if name == "iota":
        values = _compat.iota_values(eqn)
        return [Known(values, np.ones(values.shape, bool))]
    compute, move = _ELEMENTWISE.get(name), _MOVING.get(name)
    if compute is None and move is None:
        return nothing
    found = [_known(atom, state) for atom, state in zip(eqn.invars, states, strict=True)]
    if all(each is None for each in found) or not all(_followed(a.aval) for a in eqn.invars):
        return nothing
    filled = [each or _unknown(a.aval) for a, each in zip(eqn.invars, found, strict=True)]
    given, masks = [each.values for each in filled], [each.mask for each in filled]
    if compute is not None:
        with np.errstate(all="ignore"):
            result = np.asarray(compute(*given)).astype(eqn.outvars[0].aval.dtype)
        mask = np.ones(result.shape, bool)
        for each in masks:
            mask = mask & each
    else:
        assert move is not None
        result, mask = np.asarray(move(eqn, *given)), np.asarray(move(eqn, *masks))
    return [Known(result, mask)] if mask.any() else nothing


def _followed(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return False
    return bool(
        (jax.numpy.issubdtype(dtype, np.integer) or np.dtype(dtype).kind == "b")
        and aval.size <= _MOST
    )


def known_literal(literal: Any) -> Known | None:
    """Return what is known of an integer that a program holds."""
    if not _followed(literal.aval):
        return None
    values = np.asarray(literal.val)
    return Known(values, np.ones(values.shape, bool))


def known_value(value: Any) -> Known | None:
    """Return what is known of an array that a program holds."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (np.ndarray, jax.Array)):
        return None
    if not _followed(value) or not getattr(value, "is_fully_addressable", True):
        return None
    values = np.asarray(value)
    return Known(values, np.ones(values.shape, bool))


def _known(atom: Any, state: State) -> Known | None:
    if isinstance(atom, _compat.Literal) and _followed(atom.aval):
        return known_literal(atom)
    return state.known


def _unknown(aval: Any) -> Known:
    return Known(np.zeros(aval.shape, aval.dtype), np.zeros(aval.shape, bool))


def _quotient(a: Any, b: Any) -> Any:
    """Divide integers, rounding towards zero as XLA does."""
    b = np.where(b == 0, 1, b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _select(which: Any, *cases: Any) -> Any:
    which = np.asarray(which).astype(int)
    if which.ndim == 0:
        return cases[int(which)]
    return np.choose(which, cases)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "div": _quotient,
    "rem": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "select_n": _select,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "convert_element_type": lambda x: x,
    "copy": lambda x: x,
}


def _broadcast(eqn: Any, x: Any, *_: Any) -> Any:
    shape = eqn.outvars[0].aval.shape
    inner = [1] * len(shape)
    for dim, size in zip(_compat.broadcast_dimensions(eqn), x.shape, strict=True):
        inner[dim] = size
    return np.broadcast_to(x.reshape(inner), shape)


def _sliced(eqn: Any, x: Any) -> Any:
    return x[tuple(slice(*bounds) for bounds in _compat.slice_bounds(eqn))]


_MOVING: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
    "squeeze": lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
    "transpose": lambda eqn, x: x.transpose(_compat.permutation(eqn)),
    "slice": _sliced,
    "concatenate": lambda eqn, *xs: np.concatenate(xs, axis=_compat.operated_axis(eqn)),
}
