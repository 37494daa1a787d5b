"""The table of axis rules, and how a rule is applied.

A rule says where the examples are in the outputs of an equation::

    rule: eqn, places, examples -> Followed

It is called if any operand has examples, and none of them is mixed. An equation without a rule
makes its outputs ``Mixed``: they are refused where they reach the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Index, Known, Mixed, Place, Summed


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
    aligned: dict[int, Axis] = dataclasses.field(default_factory=dict)
    sliceable: bool | None = None


@dataclasses.dataclass(frozen=True)
class FollowedOperands:
    """What a rule knows of the operands of an equation.

    Args:
        places: Where the examples are in each of them.
        known: Their integers, as far as they are known.
        examples: The number of examples.
        indices: Which of them are permutations.
    """

    places: tuple[Place, ...]
    known: tuple[Known | None, ...]
    examples: int
    indices: tuple[Index | None, ...] = ()

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
    count = len(eqn.outvars)
    if all(place is None for place in operands.places):
        return Followed((None,) * count)
    mixed = next((place for place in operands.places if isinstance(place, Mixed)), None)
    if mixed is not None and eqn.primitive.name not in _TAKES_MIXED:
        return Followed((mixed,) * count)
    found = _rules.get(eqn.primitive.name)
    if found is None:
        unknown = "is an operation without a rule, so the examples cannot be followed through it"
        return Followed((Mixed(unknown, where(eqn)),) * count)
    rule = summed if any(isinstance(p, Summed) for p in operands.places) else found[0]
    result = rule(eqn, operands)
    if any(isinstance(out, Mixed) and not out.where for out in result.outs):
        named = (
            dataclasses.replace(out, where=where(eqn))
            if isinstance(out, Mixed) and not out.where
            else out
            for out in result.outs
        )
        result = dataclasses.replace(result, outs=tuple(named))
    return result


#: Primitives whose rules accept operands in which examples are mixed.
_TAKES_MIXED = frozenset({"ragged_dot_general"})

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
    ]
)


def summed(eqn: Any, operands: FollowedOperands) -> Followed:
    """Follow a sum over examples: it may be scaled by constants, and added to other sums."""
    name, places = eqn.primitive.name, operands.places
    sums = [isinstance(place, Summed) for place in places]
    rest = [place for place in places if not isinstance(place, Summed)]
    scaled = (name == "mul" and sum(sums) == 1) or (name == "div" and sums == [True, False])
    added = name in ("add", "sub", "add_any") and all(sums)
    if name in _LINEAR or added or (scaled and all(place is None for place in rest)):
        return Followed((Summed(),) * len(eqn.outvars))
    return Followed((Mixed("changes a sum over examples by more than a constant factor"),))


def all_mixed(eqn: Any, why: str) -> Followed:
    """Return that all outputs are mixed."""
    return Followed((Mixed(why),) * len(eqn.outvars))


def shape_of(atoms: Sequence[Any], i: int) -> tuple[int, ...]:
    """Return the shape of an operand or output."""
    return tuple(atoms[i].aval.shape)
