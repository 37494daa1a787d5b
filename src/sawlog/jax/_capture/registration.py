"""``register_capture_rule``: follow examples through a primitive of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sawlog.jax._capture.axes import Axis, Mixed, Place
from sawlog.jax._capture.axis_rules.table import Followed, FollowedOperands, axis_rule

DimensionRule = Callable[[Any, Sequence[int | None]], Sequence[int | None]]


def register_capture_rule(*primitives: Any) -> Callable[[DimensionRule], DimensionRule]:
    """Register where a primitive of your own leaves the examples, for :func:`sawlog.jax.capture`.

    The rule is called with the equation and, for each operand, the dimension of its examples, or
    None for an operand that all examples share. It returns the dimension of the examples in each
    output, or None for an output that combines examples. It must only return a dimension if the
    slice of an example in the output, and its derivative, depend on that example alone.

    A primitive that adds 1 to every element:

    >>> import sawlog
    >>> from jax.extend.core import Primitive
    >>> add_one_p = Primitive("add_one")
    >>> @sawlog.jax.register_capture_rule(add_one_p)
    ... def add_one(eqn, dims):
    ...     return dims
    """

    def register(rule: DimensionRule) -> DimensionRule:
        def follow(eqn: Any, operands: FollowedOperands) -> Followed:
            count = len(eqn.outvars)
            axes = [axis for _, axis in operands.axes]
            if any(axis.width != 1 or axis.order is not None for axis in axes):
                why = "has a rule for examples in a dimension of their own, and here they share one"
                return Followed((Mixed(why),) * count)
            dims = [p.dim if isinstance(p, Axis) else None for p in operands.places]
            outs: list[Place] = [
                Mixed("combines examples, as its rule says") if dim is None else Axis(dim)
                for dim in rule(eqn, dims)
            ]
            return Followed(tuple(outs))

        axis_rule(*(primitive.name for primitive in primitives))(follow)
        return rule

    return register
