"""A log site: everything static about one call of ``log``.

The operands of a site are flat: first the leaves of every value, key by key, then one operand for
each step axis, then (when ``masked``) one boolean that says whether the call really ran. All
operands have the same ``batch`` leading axes, one for each ``vmap`` around the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef


@dataclasses.dataclass(frozen=True)
class Site:
    """What is known about a call of ``log`` before the program runs.

    ``branches`` names the branches of a ``cond`` that ``vmap`` turned into a select, around this
    call and outermost first, each as (which cond, which branch): of two calls that differ there,
    a lane runs only one. ``steps`` are sorted, so that the operands of two sites are in the same
    order; ``axes`` are the same names as they were written. ``conditional``: there is a ``where``.
    """

    keys: tuple[str, ...]
    trees: tuple[PyTreeDef, ...]
    steps: tuple[str, ...]
    tags: tuple[str, ...]
    reduction: Any
    where: str
    axes: tuple[str, ...] = ()
    batch: int = 0
    masked: bool = False
    conditional: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    forward_mode: bool = False

    def __repr__(self) -> str:
        return f"Site({', '.join(self.keys)} at {self.where})"

    def split(self, operands: Sequence[Any]) -> Operands:
        """Give each operand its name."""
        values: list[tuple[Any, ...]] = []
        start = 0
        for tree in self.trees:
            values.append(tuple(operands[start : start + tree.num_leaves]))
            start += tree.num_leaves
        steps = dict(zip(self.steps, operands[start:], strict=False))
        mask = operands[-1] if self.masked else None
        return Operands(values, steps, mask)


def as_written(axes: Sequence[str], steps: Sequence[str], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The arrays of the step axes ``steps``, in the order in which ``axes`` names them."""
    by_name = dict(zip(steps, arrays, strict=True))
    return tuple(by_name[name] for name in axes)


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of a site: the leaves of each key, the steps, the mask."""

    values: list[tuple[Any, ...]]
    steps: dict[str, Any]
    mask: Any

    def blanked(self, select: Callable[..., Any]) -> Operands:
        """Zeros in place of what was computed in lanes that did not log.

        ``select(mask, x, y)`` takes ``x`` where the mask, which has its first axes, holds.
        """
        if self.mask is None or not self.mask.ndim:
            return self

        def blank(x: Any) -> Any:
            if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended):
                return x
            return select(self.mask, x, x.dtype.type(0))

        values = [tuple(map(blank, leaves)) for leaves in self.values]
        steps = {name: blank(step) for name, step in self.steps.items()}
        return Operands(values, steps, self.mask)
