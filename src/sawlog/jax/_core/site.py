"""A log site: everything static about one call of ``log``.

The operands of a site are flat: first the leaves of every value, key by key, then one operand for
each step axis, then (if ``masked``) one boolean that says whether the call really ran. All operands
have the same ``batch`` leading axes, one for each ``vmap`` around the call.
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

    Attributes:
        keys: The names.
        trees: The pytree structure of the value of each name.
        steps: The names of the step axes, sorted, so that operands of two sites have one order.
        tags: The tags.
        reduction: The ``reduction=`` of the call, or None.
        where: The source line of the call.
        axes: The names of ``steps`` in the order in which they were written.
        batch: The number of leading axes of every operand, one for each ``vmap``.
        masked: Whether the last operand is a mask.
        conditional: Whether the call has a ``where=``.
        branches: The branches around the call of conds that ``vmap`` turned into a select,
            outermost first, each as (number of the cond, number of the branch). Of two calls in
            different branches of one cond a lane runs only one.
        forward_mode: Whether the call runs inside ``jax.jvp``.
        measure: Of a ``log_cotangent``, ``measure(cotangent, batch)`` is logged instead of the
            cotangent, whose first ``batch`` axes are those of ``vmap``.
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
    measure: Any = None

    def __repr__(self) -> str:
        return f"Site({', '.join(self.keys)} at {self.where})"

    def split(self, operands: Sequence[Any]) -> Operands:
        """Split flat operands into values, steps and mask."""
        values: list[tuple[Any, ...]] = []
        start = 0
        for tree in self.trees:
            values.append(tuple(operands[start : start + tree.num_leaves]))
            start += tree.num_leaves
        steps = dict(zip(self.steps, operands[start:], strict=False))
        mask = operands[-1] if self.masked else None
        return Operands(values, steps, mask)


def as_written(axes: Sequence[str], steps: Sequence[str], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arrays of the step axes ``steps`` in the order of ``axes``."""
    by_name = dict(zip(steps, arrays, strict=True))
    return tuple(by_name[name] for name in axes)


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of a site: the leaves of each key, the steps by name, the mask or None."""

    values: list[tuple[Any, ...]]
    steps: dict[str, Any]
    mask: Any

    def blanked(self, select: Callable[..., Any]) -> Operands:
        """Replace values and steps by zeros in lanes that did not log.

        ``select(mask, x, y)`` returns ``x`` where the mask holds and ``y`` elsewhere; the mask has
        the first axes of ``x``.
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
