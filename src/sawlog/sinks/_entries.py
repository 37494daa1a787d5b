"""Operations of sinks on entries: validate, copy, select, concatenate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError, LogMismatchError, LogValueError
from sawlog.records import Entries, Records, lost_by_numpy


def normal(records: Any) -> Records:
    """Validate records, and convert them to numpy arrays.

    Raises:
        ArgumentError: the argument is not a mapping of names to Entries.
        LogValueError: an array does not consist of numbers, texts or times.
        LogMismatchError: a mask does not fit its values.
    """
    if not isinstance(records, Mapping):
        raise ArgumentError(
            f"`records` must be sawlog.records.Records; got {type(records).__name__}. "
            'Hint: sink.write(Records({"loss": Entries(np.array([0.5]))})).'
        )
    return Records({name: _normal(name, entries) for name, entries in records.items()})


def _normal(name: Any, entries: Any) -> Entries:
    if not isinstance(name, str) or not isinstance(entries, Entries):
        raise ArgumentError(
            f"Records map names to Entries; got {type(entries).__name__} under {name!r}. "
            'Hint: Records({"loss": Entries(np.array([0.5]), {"step": np.array([0])})}).'
        )
    arrays = (entries.values, *entries.steps.values())
    mask = entries.mask
    usual = all(type(array) is np.ndarray for array in arrays)
    if not usual or (mask is not None and type(mask) is not np.ndarray):
        for part in (*arrays, mask):
            if lost := lost_by_numpy(part):
                raise LogValueError(
                    f"numpy would drop {lost} from {name!r}. Nothing of the call was taken. Hint: "
                    "x.filled(...), or Entries(x.data, steps, mask=~x.mask); strip strings; "
                    "np.array(x, dtype) for lists of several types."
                )
        steps = {axis: np.asarray(array) for axis, array in entries.steps.items()}
        mask = None if mask is None else np.asarray(mask)
        entries = Entries(np.asarray(entries.values), steps, mask, entries.attrs)
    for array in (entries.values, *entries.steps.values()):
        if array.dtype.hasobject:
            raise LogValueError(
                f"{name!r} has values or steps of the dtype {array.dtype}: Python objects, not "
                "numbers. Nothing of the call was taken. Hint: convert them, as with "
                "np.asarray(values, dtype='float32')."
            )
    if mask is not None and (mask.dtype != bool or mask.shape != entries.values.shape[: mask.ndim]):
        raise LogMismatchError(
            f"The mask of {name!r} is {mask.dtype}{list(mask.shape)}, and its values have the "
            f"shape {list(entries.values.shape)}. Hint: a mask has bools, and the leading axes of "
            "the values."
        )
    return entries


def copied(entries: Entries) -> Entries:
    """Copy the arrays of entries."""
    steps = {axis: array.copy() for axis, array in entries.steps.items()}
    mask = None if entries.mask is None else entries.mask.copy()
    return Entries(entries.values.copy(), steps, mask, entries.attrs)


def copied_records(records: Records) -> Records:
    """Copy the arrays of all entries."""
    return Records({name: copied(entries) for name, entries in records.items()})


def taken(entries: Entries, which: Any) -> Entries:
    """Select entries by a slice, indices, or a bool for each."""
    steps = {axis: array[which] for axis, array in entries.steps.items()}
    mask = None if entries.mask is None else entries.mask[which]
    return Entries(entries.values[which], steps, mask, entries.attrs)


def is_there(entries: Entries) -> np.ndarray:
    """Return ``[n]`` bools: whether any item of each entry was logged."""
    mask = entries.mask
    if mask is None or 0 in mask.shape[1:]:
        return np.ones(len(entries), bool)
    return any_of(mask)


def any_of(flags: np.ndarray) -> np.ndarray:
    """Reduce ``[n, ...]`` bools to ``[n]``: whether any of each entry is true."""
    return np.asarray(flags.any(axis=tuple(range(1, flags.ndim))))


def logged(entries: Entries) -> Entries:
    """Drop entries that are masked entirely, and then a mask that is true everywhere."""
    if entries.mask is None:
        return entries
    there = is_there(entries)
    left = entries if there.all() else taken(entries, there)
    if left.mask is not None and left.mask.all():
        return Entries(left.values, left.steps, None, left.attrs)
    return left


def step_mask(entries: Entries, steps: np.ndarray) -> np.ndarray | None:
    """Return which steps of an axis were logged; None for all. The others are meaningless zeros.

    >>> entries = Entries(np.zeros((1, 2)), mask=np.array([[True, False]]))
    >>> step_mask(entries, np.array([[3, 0]]))
    array([[ True, False]])
    """
    mask = entries.mask
    if mask is None:
        return None
    if mask.ndim > steps.ndim:
        mask = np.asarray(mask.any(axis=tuple(range(steps.ndim, mask.ndim))))
    return mask if mask.shape == steps.shape[: mask.ndim] else None


def check_alike(name: str, first: Entries, more: Entries) -> None:
    """Check that entries can be appended to others.

    Raises:
        LogMismatchError: they differ in type or in step axes.
    """
    if set(first.steps) != set(more.steps):
        raise LogMismatchError(
            f"{name!r} was first written with the step axes {sorted(first.steps)}, and these "
            f"entries have {sorted(more.steps)}. Hint: give the same steps every time."
        )
    pairs = [("values", first.values, more.values)]
    pairs += [(f"steps {a!r}", array, more.steps[a]) for a, array in first.steps.items()]
    for what, one, two in pairs:
        texts = one.dtype.kind == two.dtype.kind and one.dtype.kind in "US"
        if one.shape[1:] != two.shape[1:] or (one.dtype != two.dtype and not texts):
            raise LogMismatchError(
                f"{name!r} was first written with {what} of type {_type(one)}, and these are "
                f"{_type(two)}. Nothing of the call was taken. Hint: convert them, or use another "
                "name."
            )


def _type(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape[1:])}"


def joined(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries of one type; the attributes are those of the first."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    steps = {axis: np.concatenate([part.steps[axis] for part in parts]) for axis in first.steps}
    values = np.concatenate([part.values for part in parts])
    return Entries(values, steps, _joined_mask(parts), first.attrs)


def _joined_mask(parts: Sequence[Entries]) -> np.ndarray | None:
    """Concatenate masks, broadcast to the largest number of axes."""
    masks = [part.mask for part in parts]
    if all(mask is None for mask in masks):
        return None
    shape = max((mask.shape[1:] for mask in masks if mask is not None), key=len)
    grown = []
    for part, mask in zip(parts, masks, strict=True):
        mask = np.ones(len(part), bool) if mask is None else mask
        grown.append(np.broadcast_to(deepened(mask, 1 + len(shape)), (len(part), *shape)))
    return np.concatenate(grown)


def deepened(array: np.ndarray, ndim: int) -> np.ndarray:
    """Append axes of length 1, up to ``ndim`` axes."""
    return array.reshape(array.shape + (1,) * max(0, ndim - array.ndim))
