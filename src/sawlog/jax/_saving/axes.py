"""Where the entries of a key are among the axes of its arrays, and what is noted about that."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from sawlog.errors import LogMismatchError
from sawlog.jax._logdict.entries import Part, Slot
from sawlog.jax._saving.metadata import Notes
from sawlog.jax._saving.treespec import Spec


@dataclasses.dataclass(frozen=True)
class Axes:
    """Where the entries of a key are: along axis ``outer``, or nowhere; and how many."""

    slot: Slot
    outer: int
    stacked: bool
    ndim: int
    rows: int

    @classmethod
    def of(cls, part: Part) -> Axes:
        """Those of a key with at least one leaf."""
        shape = np.shape(part.first)
        outer = max(0, len(shape) - part.slot.ndim)
        stacked = part.slot.stacked and len(shape) >= part.slot.ndim
        return cls(part.slot, outer, stacked, len(shape), shape[outer] if stacked else 1)

    def leading(self, array: Any, what: str) -> np.ndarray:
        """An array with the entry axis in front, made if there is none.

        Raises:
            LogMismatchError: it has no such axis; ``what`` says which array it is.
        """
        array = np.asarray(array)
        if not self.stacked:
            return array[None]
        if array.ndim <= self.outer:
            raise LogMismatchError(
                f"The entries of {self.slot.key!r} are along axis {self.outer}, which {what} with "
                f"the shape {array.shape} does not have. Hint: give one item for each entry."
            )
        return np.moveaxis(array, self.outer, 0) if self.outer else array

    def check(self, rows: int, name: str) -> None:
        """Refuse a leaf with another number of entries than the first.

        Raises:
            LogMismatchError: naming the leaf.
        """
        if rows != self.rows:
            raise LogMismatchError(
                f"The arrays of {self.slot.key!r} have different numbers of entries: {self.rows} "
                f"in the first one, {rows} in {name!r}. Hint: save them under different keys."
            )


@functools.lru_cache(maxsize=1024)
def attrs_of(axes: Axes, inner: bool, leaf: int, tree: Spec, impl: str | None) -> dict[str, Any]:
    """What is noted with a leaf; remembered, since programs log the same again and again."""
    slot = axes.slot
    own, usual = (slot.stacked, slot.ndim), (axes.stacked, axes.ndim - axes.outer)
    return Notes(
        key=slot.key if inner else None,
        leaf=leaf,
        tree=tree,
        stacked=axes.stacked,
        outer=axes.outer,
        batch=slot.batch,
        reduction=slot.reduction,
        rows=axes.rows if slot.reduction is not None or not axes.rows else None,
        slot=None if own == usual else own,
        impl=impl,
    ).to_attrs()
