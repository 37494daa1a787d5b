"""The table of axis rules, and how a rule is applied.

A rule says where the examples are in the outputs of an equation::

    rule: eqn, places, examples -> Followed

It is called if any operand has examples, and none of them is mixed. An equation without a rule
makes its outputs ``Mixed``: they are refused where they reach the loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import (
    ONE,
    Axis,
    CutBatch,
    Index,
    Known,
    Mixed,
    Place,
    Split,
    Summed,
    joined,
)
from sawlog.jax._capture.cut_rows import whole_or_cut


@dataclasses.dataclass(frozen=True)
class Followed:
    """Where the examples are after an equation.

    Args:
        outs: The place of each output.
        aligned: Constants that each example sees one slice of, by position, and where the slice is:
            ``w`` in ``x + w`` with both of the shape ``[examples, n]``.
        sliceable: Whether the equation can be bound for a single example; None if the table says.
    """

    outs: tuple[Place, ...]
    aligned: dict[int, Any] = dataclasses.field(default_factory=dict)
    sliceable: bool | None = None


@dataclasses.dataclass(frozen=True)
class FollowedOperands:
    """What a rule knows of the operands of an equation.

    Args:
        places: Where the examples are in each of them.
        known: Their integers, as far as they are known.
        examples: The number of examples.
        indices: Which of them are permutations.
        mesh: The axes of a mesh over which the examples are spread, inside of ``shard_map``.
        uniform: For each of them, dimensions along which it is the same everywhere.
    """

    places: tuple[Place, ...]
    known: tuple[Known | None, ...]
    examples: int
    indices: tuple[Index | None, ...] = ()
    mesh: frozenset[str] = frozenset()
    uniform: tuple[frozenset[int], ...] = ()

    @property
    def axes(self) -> list[tuple[int, Axis]]:
        """The operands that have examples, by position."""
        return [(i, place) for i, place in enumerate(self.places) if isinstance(place, Axis)]


Rule = Callable[[Any, FollowedOperands], Followed]

_rules: dict[str, tuple[Rule, bool]] = {}


def axis_rule(*names: str, sliceable: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule for primitives of these names.

    Args:
        names: The names of primitives.
        sliceable: Whether the equation can be bound for a single example with unchanged
            parameters, by slicing the operands along the examples.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            _rules[name] = (rule, sliceable)
        return rule

    return register


def is_sliceable(eqn: Any) -> bool:
    """Return whether an equation can be bound for a single example."""
    rule = _rules.get(eqn.primitive.name)
    return rule is not None and rule[1]


def where(eqn: Any) -> str:
    """Return the name of an equation and its source line."""
    return f"'{_compat.equation_name(eqn)}' at {_compat.source_line(eqn)}"


def follow(eqn: Any, operands: FollowedOperands) -> Followed:
    """Apply the rule of an equation; name the equation where examples are mixed."""
    count, name = len(eqn.outvars), eqn.primitive.name
    if all(place is None for place in operands.places):
        return Followed((None,) * count)
    mixed = next((place for place in operands.places if isinstance(place, Mixed)), None)
    if mixed is not None and name not in _TAKES_MIXED:
        return Followed((mixed,) * count)
    if all(place in (None, ONE) for place in operands.places):
        return Followed((ONE,) * count)  # whatever it does, there is only one example
    found = _rules.get(name)
    if found is None:
        unknown = "is an operation without a rule, so the examples cannot be followed through it"
        return Followed((Mixed(unknown, where(eqn)),) * count)
    if any(isinstance(place, Summed) for place in operands.places):
        result = summed(eqn, operands)
    elif any(isinstance(place, Split) for place in operands.places) and name not in _TAKES_SPLIT:
        result = _by_parts(found[0], eqn, operands)
    else:
        result = found[0](eqn, operands)
    if any(_by_position(axis, i, operands) for i, axis in result.aligned.items()):
        result = all_mixed(eqn, "combines sorted rows with values that depend on their position")
    if any(isinstance(out, (Mixed, CutBatch)) and not out.where for out in result.outs):
        named = (
            dataclasses.replace(out, where=where(eqn))
            if isinstance(out, (Mixed, CutBatch)) and not out.where
            else out
            for out in result.outs
        )
        result = dataclasses.replace(result, outs=tuple(named))
    return result


def _by_position(axis: Any, i: int, operands: FollowedOperands) -> bool:
    """Return whether rows meet a constant by their position among sorted rows of the batch."""
    if not isinstance(axis, Axis) or axis.order is None:
        return False
    return not operands.uniform or axis.dim not in operands.uniform[i]


#: Primitives whose rules accept operands in which examples are mixed.
_TAKES_MIXED = frozenset({"ragged_dot_general"})

#: Primitives whose rules accept operands in which the examples are along several dimensions.
_TAKES_SPLIT = frozenset({"reshape"})


def _by_parts(rule: Rule, eqn: Any, operands: FollowedOperands) -> Followed:
    """Follow examples that are along several dimensions, one dimension after the other.

    An output whose slice depends on one value of the first digit alone, and on one value of the
    second digit alone, depends on one example alone.
    """
    count = len(eqn.outvars)
    sizes = {p.sizes if isinstance(p, Split) else None for p in operands.places if p is not None}
    if len(sizes) > 1 or None in sizes:
        why = "combines examples that are split into several dimensions in different ways"
        return Followed((Mixed(why),) * count)
    outs: list[list[Any]] = [[] for _ in range(count)]
    aligned: dict[int, Axis | Split] = {}
    split = next(place for place in operands.places if isinstance(place, Split))
    for i, size in enumerate(split.sizes):
        places = tuple(p.parts[i] if isinstance(p, Split) else None for p in operands.places)
        one = FollowedOperands(places, operands.known, size, (None,) * len(places), operands.mesh)
        found = rule(eqn, one)
        aligned |= dict.fromkeys(found.aligned, split)
        for out, place in zip(outs, found.outs, strict=True):
            out.append((place, size))
    joint = tuple(_joint(digits) for digits in outs)
    return Followed(joint, aligned, sliceable=False if aligned else None)


def _joint(digits: Sequence[tuple[Place, int]]) -> Place:
    """Return the place of digits, of which some values may be selected."""
    parts, chosen = [], np.zeros(1, int)
    for place, size in digits:
        values = np.asarray(place.chosen) if isinstance(place, CutBatch) else np.arange(size)
        own = place.place if isinstance(place, CutBatch) else place
        if own == ONE:
            own = Axis(0)
        if not isinstance(own, Axis):
            return _mixed(digits)
        parts.append((own, len(values)))
        chosen = (chosen[:, None] * size + values).reshape(-1)
    return whole_or_cut(joined(parts), chosen.tolist(), math.prod(size for _, size in digits))


def _mixed(digits: Sequence[tuple[Place, int]]) -> Place:
    """Return why a digit cannot be followed; a sum over it matters only without other reasons."""
    found = [place for place, _ in digits if not isinstance(place, (Axis, CutBatch))]
    other = [place for place in found if place != SUM]
    return other[0] if other else found[0]


_LINEAR = frozenset(
    [
        "neg",
        "convert_element_type",
        "reshape",
        "squeeze",
        "broadcast_in_dim",
        "copy",
        "reduce_sum",
        "transpose",
        "reduce_precision",
        "sharding_constraint",
        "mesh_cast",
        "reshard",
        "pvary",
        "pcast",
        "psum",
        "psum_invariant",
        "all_gather",
        "all_gather_invariant",
        "reduce_scatter",
        "ppermute",
    ]
)

#: A sum over examples. The interpreter turns it into ``Summed`` for a declared sum or mean.
SUM = Mixed("adds up the examples of the batch")


def summed(eqn: Any, operands: FollowedOperands) -> Followed:
    """Follow a sum over examples: it may be scaled by constants, and added to other terms."""
    name, places = eqn.primitive.name, operands.places
    sums = [isinstance(place, Summed) for place in places]
    rest = [place for place in places if not isinstance(place, Summed)]
    scaled = (name == "mul" and sum(sums) == 1) or (name == "div" and sums == [True, False])
    linear = name in _LINEAR or name in ("add", "sub", "add_any")
    if linear or (scaled and all(place is None for place in rest)):
        return Followed((Summed(),) * len(eqn.outvars))
    return Followed((Mixed("changes a sum over examples by more than a constant factor"),))


def all_mixed(eqn: Any, why: str) -> Followed:
    """Return that all outputs are mixed."""
    return Followed((Mixed(why),) * len(eqn.outvars))


def shape_of(atoms: Sequence[Any], i: int) -> tuple[int, ...]:
    """Return the shape of an operand or output."""
    return tuple(atoms[i].aval.shape)
