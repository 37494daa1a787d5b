"""Reduce a block of entries to one entry, with masks, by the table of ``sawlog._reductions``."""

from __future__ import annotations

import numpy as np

from sawlog._reductions import REDUCTION_KINDS, first, last
from sawlog.errors import LogValueError
from sawlog.records import Entries
from sawlog.sinks._entries import deepened, step_mask
from sawlog.store._format._dtypes import is_extension

#: The kinds of numpy dtypes that a reduction accepts.
_ACCEPTED = {"any": "biufcMmSUV", "ordered": "biufMm", "numbers": "biufc"}


def reduced(name: str, block: Entries, how: str) -> Entries:
    """Reduce a non-empty block to one entry with the attributes of the first.

    ``"first"`` keeps the step of the first entry; every other reduction keeps that of the last.
    Where a mask has more than the entry axis, each item is reduced over the entries that have it,
    and is masked where no entry has it. The caller has checked the dtype.
    """
    mask = block.mask
    where = None if mask is None else _grown(mask, block.values)
    values = _as_numbers(block.values, how)
    result = np.asarray(REDUCTION_KINDS[how].of_block(values, where))
    result = result.astype(_result_dtype(block.values.dtype, result.dtype, how), copy=False)
    at = block.steps.items()
    steps = {axis: _step(array, step_mask(block, array), how)[None] for axis, array in at}
    left = None if mask is None else np.asarray(mask.any(axis=0))[None]
    return Entries(result[None], steps, left, block.attrs)


def _grown(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(deepened(mask, values.ndim), values.shape)


def _step(steps: np.ndarray, mask: np.ndarray | None, how: str) -> np.ndarray:
    """Return the step of the reduced entry; per lane where lanes have their own steps and masks."""
    choose = first if REDUCTION_KINDS[how].steps == "first" else last
    return np.asarray(choose(steps, None if mask is None else _grown(mask, steps)))


def check_dtype(name: str, dtype: np.dtype, how: str) -> None:
    """Reject a dtype that a reduction does not accept.

    Raises:
        LogValueError: the message names both.
    """
    kind = "f" if is_extension(dtype) else dtype.kind
    if kind not in _ACCEPTED[REDUCTION_KINDS[how].accepts]:
        raise LogValueError(
            f"{name!r} has the dtype {dtype}, which has no {how!r}. Nothing of the call was taken. "
            f'Hint: Reduce(sink, n, {{{name!r}: "last", "*": {how!r}}}), or leave it out with '
            "Select."
        )


def _as_numbers(values: np.ndarray, how: str) -> np.ndarray:
    """Convert values to a dtype that numpy can compute with; floats add in double precision."""
    accepts = REDUCTION_KINDS[how].accepts
    if accepts == "any":
        return values
    if is_extension(values.dtype):
        return values.astype(np.float64)
    narrow = values.dtype.kind in "fc" and accepts == "numbers"
    return values.astype(np.result_type(values.dtype, np.float64)) if narrow else values


def _result_dtype(given: np.dtype, result: np.dtype, how: str) -> np.dtype:
    """Keep the dtype of floats; means of integers are float64, and sums of them are wide."""
    if how == "count":
        return result
    if given.kind == "c" and how in ("std", "var"):
        return np.empty(0, given).real.dtype
    return given if given.kind in "fc" or is_extension(given) else result
