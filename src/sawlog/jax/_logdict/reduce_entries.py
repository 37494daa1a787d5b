"""Reduce the entries of a logdict, after the program has run or inside another one."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import lax

from sawlog._names import ByName
from sawlog.jax._compat import is_tracer
from sawlog.jax._core.arrays import host_array, inner, select, type_of, zeros
from sawlog.jax._core.reductions import Reduction, begin, check_mode, for_steps, reduction_of
from sawlog.jax._logdict import entries as entries_of
from sawlog.jax._logdict.entries import LogdictPart


def reduce_part(part: LogdictPart, mode: Any) -> LogdictPart:
    """Reduce the entries of one key to one, by ``mode``; ``append`` returns them unchanged."""
    check_mode(mode, "mode")
    reduction = reduction_of(ByName.read(mode).of(part.slot.key))
    if reduction is None:
        return part
    part = entries_of.stack(part)
    value = _fold(reduction, part.value, part.mask, part)
    steps = tuple(_fold(for_steps(reduction), x, part.mask, part) for x in part.steps)
    mask = None if part.mask is None else part.mask.any(axis=part.outer)
    if mask is None and (shape := _shape_without_entries(part)) is not None:
        mask = entries_of.namespace(part).zeros(shape, bool)
    if entries_of.namespace(part) is np and not any(map(is_tracer, jax.tree.leaves(value))):
        value, steps = jax.tree.map(host_array, (value, steps))  # not while a program is traced
    slot = dataclasses.replace(
        part.slot,
        stacked=False,
        ndim=np.ndim(jax.tree.leaves(value)[0]) - part.outer,
        masked=mask is not None,
        counted=False,
        reduction=reduction.name,
    )
    return LogdictPart(value, steps, mask, slot)


def _shape_without_entries(part: LogdictPart) -> tuple[int, ...] | None:
    """Return the shape of the mask of a reduction of no entries; None if there are entries."""
    shape = np.shape(jax.tree.leaves(part.value)[0])
    if shape[part.outer]:
        return None
    return *shape[: part.outer], *shape[part.outer + 1 :][: part.slot.batch]


def _fold(reduction: Reduction, value: Any, mask: Any, part: LogdictPart) -> Any:
    """Fold the entries of each lane separately."""

    def fold(value: Any, mask: Any) -> Any:
        like = jax.tree.map(lambda x: zeros(inner(x, 1)), value)

        def step(state: Any, entry: Any) -> Any:
            x, here = entry
            new = reduction.update(state, x)
            if here is not None:
                new = jax.tree.map(lambda a, b: select(here, a, b), new, state)
            return new, None

        return reduction.finish(lax.scan(step, begin(reduction, like), (value, mask))[0])

    # [*outer, entries, *batch, ...]: one fold per index along outer and batch
    fun = fold
    for _ in range(part.slot.batch):
        fun = jax.vmap(fun, in_axes=1)
    for _ in range(part.outer):
        fun = jax.vmap(fun)
    if any(type_of(x).sharding is not None for x in jax.tree.leaves((value, mask))):
        fun = jax.jit(fun)  # outside a program, sharded types would need a mesh context
    if not _would_truncate(value):
        return fun(value, mask)
    with jax.enable_x64(True):
        return jax.tree.map(host_array, fun(value, mask))


def _would_truncate(value: Any) -> bool:
    """Return whether these are numpy arrays of which JAX would truncate some to 32 bits."""
    leaves = jax.tree.leaves(value)
    return all(isinstance(x, (np.ndarray, np.generic)) for x in leaves) and any(
        jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype for x in leaves
    )
