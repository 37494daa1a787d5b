"""Join the entries of several names by equal steps.

If a name has the same steps several times, its first entry with them is joined with the first of
the others, its second with the second, and so on. No entry is duplicated or lost.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.store._views._widen import widened

Steps = Mapping[str, np.ndarray]
_MANY = 8  # items in a step; longer steps are compared as bytes
_FEW_CELLS = 1 << 24
_CELLS_PER_ENTRY = 100


@dataclasses.dataclass(frozen=True)
class JoinedRows:
    """The result of :func:`join`.

    ``entries`` has for each name the number of its entry in every row, -1 for none; or None if
    entries equal rows. ``first`` has for every row the name and the entry that its steps are from;
    or None if any name whose ``entries`` is None has all steps.
    """

    rows: int
    entries: list[np.ndarray | None]
    first: tuple[np.ndarray, np.ndarray] | None


def join(steps: Sequence[Steps], lengths: Sequence[int]) -> JoinedRows:
    """Join entries with equal steps. All names have the same step axes.

    Rows are sorted by step if every name was logged in that order, and otherwise in the order in
    which steps first appear, name by name.

    >>> join([{"step": np.array([0, 1, 2])}, {"step": np.array([0, 2])}], [3, 2]).entries
    [None, array([ 0, -1,  1])]
    """
    filled = [i for i, length in enumerate(lengths) if length]
    rows = max(lengths, default=0)
    if _all_same([steps[i] for i in filled], [lengths[i] for i in filled]):
        _check_cells(rows, lengths)
        none = np.full(rows, -1)
        return JoinedRows(rows, [None if length or not rows else none for length in lengths], None)
    codes = _codes([steps[i] for i in filled])
    bounds = np.cumsum([0, *(lengths[i] for i in filled)])
    parts = [codes[low:high] for low, high in itertools.pairwise(bounds.tolist())]
    again = np.concatenate([_occurrence(part) for part in parts])
    keys = codes * (int(again.max()) + 1) + again
    _, at, row = np.unique(keys, return_index=True, return_inverse=True)
    if not all(bool((part[1:] >= part[:-1]).all()) for part in parts):
        order = np.argsort(at)
        at, row = at[order], np.argsort(order)[row]
    _check_cells(len(at), lengths)
    of = np.searchsorted(bounds, at, side="right") - 1
    found = (row[low:high] for low, high in itertools.pairwise(bounds.tolist()))
    numbers = {i: _inverse(own, len(at)) for i, own in zip(filled, found, strict=True)}
    entries = [numbers.get(i, np.full(len(at), -1)) for i in range(len(lengths))]
    if any(each is None for each in entries):
        return JoinedRows(len(at), entries, None)
    return JoinedRows(len(at), entries, (np.array(filled)[of], at - bounds[of]))


def _check_cells(rows: int, lengths: Sequence[int]) -> None:
    """Refuse a large table that is nearly empty: its size has nothing to do with that of the store.

    Raises:
        ArgumentError: fewer than one cell in a hundred would have a value.
    """
    cells, entries = rows * len(lengths), sum(lengths)
    if cells > max(_FEW_CELLS, _CELLS_PER_ENTRY * entries):
        raise ArgumentError(
            f"{len(lengths)} names with {rows} different steps are a table of {cells} cells, of "
            f"which {entries} have a value. Hint: use long=True, or choose names that are logged "
            "at the same steps with names=[...]."
        )


def _all_same(steps: Sequence[Steps], lengths: Sequence[int]) -> bool:
    return len(set(lengths)) <= 1 and all(
        _equal(own[axis], steps[0][axis]) for own in steps[1:] for axis in steps[0]
    )


def _equal(one: np.ndarray, two: np.ndarray) -> bool:
    return one is two or bool(np.array_equal(widened(one), widened(two)))


def _codes(steps: Sequence[Steps]) -> np.ndarray:
    """Return a number for each entry of all names, with the order and equality of steps."""
    codes = np.zeros(sum(len(next(iter(own.values()))) for own in steps), np.int64)
    for axis in steps[0]:
        whole = np.concatenate([widened(own[axis]) for own in steps])
        for column in _columns(whole.reshape(len(whole), -1)):
            found = np.unique(column, return_inverse=True)[1].astype(np.int64)
            both = codes * (int(found.max(initial=0)) + 1) + found
            codes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return codes


def _columns(steps: np.ndarray) -> Sequence[np.ndarray]:
    if steps.shape[1] <= _MANY:
        return list(steps.T)
    width = steps.shape[1] * steps.dtype.itemsize
    return [np.ascontiguousarray(steps).view(f"V{width}")[:, 0]]


def _occurrence(codes: np.ndarray) -> np.ndarray:
    """Return how often each code occurred before."""
    order = np.argsort(codes, kind="stable")
    new = np.concatenate([[True], codes[order][1:] != codes[order][:-1]])
    since = np.arange(len(codes)) - np.maximum.accumulate(np.where(new, np.arange(len(codes)), 0))
    out = np.empty(len(codes), np.int64)
    out[order] = since
    return out


def _inverse(row: np.ndarray, rows: int) -> np.ndarray | None:
    """Return the entry of every row, given the row of every entry."""
    if len(row) == rows and bool((row == np.arange(rows)).all()):
        return None
    out = np.full(rows, -1)
    out[row] = np.arange(len(row))
    return out
