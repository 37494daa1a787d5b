"""Reductions over the entries of a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax import _entries as entries_of
from sawlog.jax._entries import Part

MODES = (
    "append",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "replace",
    "std",
    "sum",
    "var",
)


def check_mode(mode: Any) -> None:
    """Refuse a reduction that does not exist.

    Raises:
        ArgumentError: naming those that do.
    """
    modes = list(mode.values()) if isinstance(mode, Mapping) else [mode]
    for name in modes:
        if name not in MODES:
            raise ArgumentError(f"There is no reduction {name!r}. Hint: one of {', '.join(MODES)}.")


def reduce_part(part: Part, mode: Any) -> Part:
    """Reduce the entries of one key to a single one, as ``mode`` says."""
    check_mode(mode)
    if isinstance(mode, Mapping):
        mode = mode.get(part.slot.key, "append")
    if mode == "append":
        return part
    part = entries_of.stack(part)
    step_mode = mode if mode in ("first", "mean") else "last"
    reduced = Part(
        jax.tree.map(lambda x: _reduce(x, part, mode), part.value),
        tuple(_reduce(x, part, step_mode) for x in part.steps),
        None if part.mask is None else part.mask.any(axis=part.outer),
        part.slot,
    )
    slot = dataclasses.replace(
        part.slot, stacked=False, ndim=np.ndim(reduced.first) - part.outer, masked=False
    )
    if part.mask is not None:
        slot = dataclasses.replace(slot, masked=True)
    return dataclasses.replace(reduced, slot=slot)


def _reduce(x: Any, part: Part, mode: str) -> Any:
    axis, xp = part.outer, entries_of.namespace(part)
    mask = None if part.mask is None else _align(part.mask, x, xp)
    if mode in ("first", "last", "replace"):
        return _pick(x, mask, axis, xp, last=mode != "first")
    if mode == "count":
        counts = xp.ones(x.shape, np.int32) if mask is None else xp.broadcast_to(mask, x.shape)
        return xp.sum(counts, axis=axis, dtype=np.int32)
    fun: Callable[..., Any] = getattr(xp, mode)
    if mask is None:
        return fun(x, axis=axis)
    if mode in ("min", "max"):
        return fun(x, axis=axis, where=mask, initial=_neutral(x.dtype, mode))
    return fun(x, axis=axis, where=mask)


def _align(mask: Any, x: Any, xp: Any) -> Any:
    return xp.reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))


def _pick(x: Any, mask: Any, axis: int, xp: Any, *, last: bool) -> Any:
    if mask is None:
        return x[(slice(None),) * axis + (-1 if last else 0,)]
    size = x.shape[axis]
    order = xp.arange(size).reshape((size,) + (1,) * (x.ndim - axis - 1))
    ranked = xp.where(mask, order + 1, 0) if last else xp.where(mask, size - order, 0)
    return xp.take_along_axis(x, xp.argmax(ranked, axis=axis, keepdims=True), axis).squeeze(axis)


def _neutral(dtype: Any, mode: str) -> Any:
    if np.dtype(dtype) == np.bool_:
        return mode == "min"
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return info.max if mode == "min" else info.min
    return np.inf if mode == "min" else -np.inf
