"""Statistics over the lanes of a ``vmap``, such as averages over seeds, with masks and steps.

They are computed on the host, in float64. Where lanes logged at different steps, entries are
matched by step: an average covers the lanes that logged that step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sawlog._reductions import REDUCTION_KINDS
from sawlog.errors import ArgumentError, LogValueError
from sawlog.jax import _compat
from sawlog.jax._core.arrays import is_plain
from sawlog.jax._logdict.entries import LogdictPart, full_mask, stack

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps values ``[entries, lanes, ...]`` and a mask of the same rank to ``[entries, ...]``."""


def has_lanes(part: LogdictPart) -> bool:
    """Return whether a key has axes of ``vmap``, inside the logged function or around it."""
    return bool(part.outer or part.slot.batch)


def over_lanes(part: LogdictPart, statistic: Statistic, name: str) -> LogdictPart:
    """Reduce the lanes of each entry to one value; a key without lanes is returned unchanged.

    A single entry that no lane logged becomes no entries, of shape ``[0, ...]``.

    Raises:
        ArgumentError: the logs are traced.
        LogValueError: the values are PRNG keys.
    """
    if not has_lanes(part):
        return part
    stacked, wide = part.stacked, stack(part)
    _check_concrete(wide, name)
    values = jax.tree.map(lambda x: _entries_and_lanes(_plain(x, part, name), wide), wide.value)
    steps = [_entries_and_lanes(np.asarray(x), wide) for x in wide.steps]
    mask = _entries_and_lanes(np.asarray(full_mask(wide)), wide)
    values, steps, mask = _matched(values, steps, mask, part)
    stacked = stacked or not len(mask)

    def apply(x: np.ndarray) -> np.ndarray:
        result = statistic(x, mask.reshape(mask.shape + (1,) * (x.ndim - 2)))
        return result if stacked else result[0]

    value = jax.tree.map(apply, values)
    slot = dataclasses.replace(
        part.slot,
        stacked=stacked,
        ndim=np.ndim(jax.tree.leaves(value)[0]),
        batch=0,
        masked=False,
        counted=False,
        reduction=part.slot.reduction,
    )
    return LogdictPart(value, tuple(x if stacked else x[0] for x in steps), None, slot)


def over_entries(part: LogdictPart, statistic: Statistic, name: str) -> LogdictPart:
    """Reduce the entries that each lane logged to one value; the result has no steps.

    Raises:
        ArgumentError, LogValueError: as :func:`over_lanes`.
    """
    wide = stack(part)
    _check_concrete(wide, name)
    lanes = wide.first.shape[: wide.outer] + wide.first.shape[wide.outer + 1 :][: wide.slot.batch]
    mask = _entries_and_lanes(np.asarray(full_mask(wide)), wide).T

    def apply(x: Any) -> np.ndarray:
        own = np.swapaxes(_entries_and_lanes(_plain(x, part, name), wide), 0, 1)
        result = statistic(own, mask.reshape(mask.shape + (1,) * (own.ndim - 2)))
        return result.reshape(lanes + result.shape[1:])

    value = jax.tree.map(apply, wide.value)
    there = mask.any(axis=1).reshape(lanes)
    slot = dataclasses.replace(
        part.slot,
        steps=(),
        stacked=False,
        ndim=np.ndim(jax.tree.leaves(value)[0]) - wide.outer,
        masked=not there.all(),
        counted=False,
    )
    return LogdictPart(value, (), None if there.all() else there, slot)


def _check_concrete(part: LogdictPart, name: str) -> None:
    arrays = (*jax.tree.leaves(part.value), *part.rest())
    if any(map(_compat.is_tracer, arrays)):
        raise ArgumentError(
            f"logs.{name} is computed on the host and needs concrete masks and steps, but these "
            "logs are traced. Hint: return the logs and call it outside of jit, vmap and grad."
        )


def _plain(x: Any, part: LogdictPart, name: str) -> np.ndarray:
    if not is_plain(x):
        raise LogValueError(
            f"{part.slot.key!r} holds PRNG keys, which have no {name}. Hint: leave them out with "
            "logs.filter(lambda name, value: name != ...)."
        )
    return np.asarray(x)


def _entries_and_lanes(x: np.ndarray, part: LogdictPart) -> np.ndarray:
    """Reshape ``[*outer, entries, *batch, ...]`` to ``[entries, lanes, ...]``."""
    outer, batch = part.outer, part.slot.batch
    x = np.moveaxis(x, outer, 0)
    entries, lanes = x.shape[0], math.prod(x.shape[1 : 1 + outer + batch])
    return x.reshape((entries, lanes, *x.shape[1 + outer + batch :]))


def _matched(
    values: Any, steps: list[np.ndarray], mask: np.ndarray, part: LogdictPart
) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """Align the entries of lanes: by place in the program, or by step where steps differ."""
    if any(x.ndim != 2 for x in steps):
        raise ArgumentError(
            f"A step of {part.slot.key!r} is an array, and entries can only be matched by numbers. "
            "Hint: log numbers as steps."
        )
    if all(_same_in_all_lanes(x, mask) for x in steps):
        rows = mask.any(axis=1)
        first = np.argmax(mask[rows], axis=1)
        taken = [x[rows][np.arange(len(first)), first] for x in steps]
        return jax.tree.map(lambda x: x[rows], values), taken, mask[rows]
    lane, entry = np.nonzero(mask.T)
    number, firsts = _row_numbers([x[entry, lane] for x in steps], lane)

    def placed(x: np.ndarray) -> np.ndarray:
        out = np.zeros((len(firsts), *x.shape[1:]), x.dtype)
        out[number, lane] = x[entry, lane]
        return out

    taken = [x[entry[firsts], lane[firsts]] for x in steps]
    return jax.tree.map(placed, values), taken, placed(mask)


def _same_in_all_lanes(steps: np.ndarray, mask: np.ndarray) -> bool:
    first = np.take_along_axis(steps, np.argmax(mask, axis=1)[:, None], axis=1)
    return bool(np.all((steps == first) | ~mask))


def _row_numbers(steps: list[np.ndarray], lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each logged entry, sorted by steps, and one entry of each row.

    If a lane logs the same steps again, its second entry is in the next row.
    """
    codes = [np.unique(x, return_inverse=True)[1].reshape(-1) for x in steps]
    again = occurrence([*codes, lane])
    _, firsts, number = np.unique(
        np.stack([*codes, again], axis=1), axis=0, return_index=True, return_inverse=True
    )
    return number.reshape(-1), firsts


def occurrence(columns: list[np.ndarray]) -> np.ndarray:
    """Return for each row the number of equal rows before it."""
    order = np.lexsort(columns[::-1])
    table = np.stack(columns, axis=1)[order]
    is_new = np.ones(len(table), bool)
    is_new[1:] = np.any(table[1:] != table[:-1], axis=1)
    starts = np.flatnonzero(is_new)
    result = np.empty(len(table), int)
    result[order] = np.arange(len(table)) - np.repeat(starts, np.diff([*starts, len(table)]))
    return result


# -- the statistics --------------------------------------------------------------------------------


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _like(result: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Convert to 32 bits, unless the logged values have 64."""
    if x.dtype.itemsize >= (16 if np.iscomplexobj(x) else 8):
        return result
    return result.astype(np.complex64 if np.iscomplexobj(result) else np.float32)


def statistic(name: str) -> Statistic:
    """Return a reduction of ``sawlog._reductions`` as a statistic over lanes."""
    kind = REDUCTION_KINDS[name]

    def of(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        exact = kind.accepts != "numbers" or (name == "sum" and x.dtype.kind in "iub")
        if exact:  # selects, counts, or adds integers
            return np.asarray(kind.of_block(x, mask, axis=1))
        return _like(np.asarray(kind.of_block(_wide(x), mask, axis=1)), x)

    return of


def quantile(q: Any) -> Statistic:
    """Return a statistic: the quantiles of the lanes that logged.

    Several ``q`` add an axis after the entries.
    """

    def of(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if np.iscomplexobj(x):
            raise LogValueError(
                "Complex numbers have no quantiles. Hint: log their absolute value."
            )
        if not x.shape[1]:  # the mask of the result leaves it out
            x, mask = np.zeros((len(x), 1, *x.shape[2:]), x.dtype), np.zeros((len(x), 1), bool)
            mask = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
        wide = np.where(mask, _wide(x), np.nan)
        unknown = np.any(np.isnan(wide) & mask, axis=1) | ~np.any(mask, axis=1)
        result = np.nanquantile(np.where(unknown[:, None], 0.0, wide), q, axis=1)
        result = np.moveaxis(result, 0, 1) if np.ndim(q) else result
        unknown = np.broadcast_to(unknown[:, None] if np.ndim(q) else unknown, result.shape)
        return _like(np.where(unknown, np.nan, result), x)

    return of
