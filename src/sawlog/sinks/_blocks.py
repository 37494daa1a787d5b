"""A block of entries becomes one: the reductions of ``Reduce``, with masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sawlog.errors import LogValueError
from sawlog.records import Entries
from sawlog.sinks._entries import deepened, step_mask
from sawlog.store._format._dtypes import is_extension

#: Values ``[n, ...]``, and which of them count, of the same shape or None for all; to ``[...]``.
Reduction = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def reduced(name: str, block: Entries, how: str) -> Entries:
    """One entry of at least one: values reduced, the steps of the last, the notes of the first.

    Where a mask has more than the entry axis, each item is reduced over the entries that have it,
    and is masked where none has. The dtype was checked before.
    """
    mask = block.mask
    where = None if mask is None else _grown(mask, block.values)
    values = _as_numbers(block.values, how)
    result = np.asarray(REDUCTIONS[how](values, where))
    result = result.astype(_result_dtype(block.values.dtype, result.dtype, how), copy=False)
    at = block.steps.items()
    steps = {axis: _last_step(array, step_mask(block, array))[None] for axis, array in at}
    left = None if mask is None else np.asarray(mask.any(axis=0))[None]
    return Entries(result[None], steps, left, block.attrs)


def _grown(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(deepened(mask, values.ndim), values.shape)


def check_dtype(name: str, dtype: np.dtype, how: str) -> None:
    """Refuse a dtype that has no such reduction.

    Raises:
        LogValueError: naming both.
    """
    kind = "f" if is_extension(dtype) else dtype.kind
    if kind not in {"last": "biufcMmSUV", "max": "biufMm", "min": "biufMm"}.get(how, "biufc"):
        raise LogValueError(
            f"{name!r} has the dtype {dtype}, which has no {how!r}. Nothing of the call was taken. "
            f'Hint: Reduce(sink, n, {{{name!r}: "last", "*": {how!r}}}), or leave it out with '
            "Select."
        )


def _as_numbers(values: np.ndarray, how: str) -> np.ndarray:
    """Values in a type that can be calculated with; sums of narrow types are made in wide ones."""
    if how == "last":
        return values
    if is_extension(values.dtype):
        return values.astype(np.float64)
    narrow = values.dtype.kind in "fc" and how not in ("max", "min")
    return values.astype(np.result_type(values.dtype, np.float64)) if narrow else values


def _result_dtype(given: np.dtype, result: np.dtype, how: str) -> np.dtype:
    """Floats stay what they are; a mean of integers is a float, and a sum of them is wide."""
    if given.kind == "c" and how == "std":
        return np.empty(0, given).real.dtype
    return given if given.kind in "fc" or is_extension(given) else result


# -- the reductions --------------------------------------------------------------------------------


def _last(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    """The last item that counts; where none does, the last."""
    if where is None:
        return np.asarray(values[-1])
    at = len(where) - 1 - np.argmax(where[::-1], axis=0)
    return np.asarray(np.take_along_axis(values, at[None], axis=0)[0])


def _filled(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    """With one that counts in the place of those that do not, which no maximum notices."""
    return values if where is None else np.where(where, values, _last(values, where))


def _max(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    return np.asarray(np.max(_filled(values, where), axis=0))


def _min(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    return np.asarray(np.min(_filled(values, where), axis=0))


def _sum(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    return np.asarray(np.sum(values, axis=0, where=True if where is None else where))


def _mean(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    count = len(values) if where is None else np.maximum(where.sum(axis=0), 1)
    return np.asarray(_sum(values, where) / count)


def _std(values: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    """Of the block as a whole, not as a sample: divided by the number of entries."""
    away = np.abs(values - _mean(values, where)) ** 2
    return np.asarray(np.sqrt(_mean(away, where)))


REDUCTIONS: dict[str, Reduction] = {
    "mean": _mean,
    "last": _last,
    "max": _max,
    "min": _min,
    "sum": _sum,
    "std": _std,
}


def _last_step(steps: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The step of the last entry; where each lane has its own step and mask, the last of each."""
    if mask is None:
        return np.asarray(steps[-1])
    return _last(steps, _grown(mask, steps))
