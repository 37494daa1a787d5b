"""Elementwise operations, and others that keep every dimension where it is."""

from __future__ import annotations

from typing import Any

from sawlog.jax._capture.axes import Axis, Mixed, Place
from sawlog.jax._capture.axis_rules.table import Followed, FollowedOperands, axis_rule, shape_of

_ELEMENTWISE = (
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt "
    "ceil clamp clz complex conj convert_element_type copy copy_p cos cosh device_put "
    "digamma div empty_like eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
    "igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 "
    "log_cotangent log_cotangent_of logistic lt lt_to max mesh_cast min mul mulhi name ne "
    "neg nextafter not "
    "one_minus_square or pcast polygamma population_count pow pvary random_gamma_grad real "
    "reduce_precision regularized_incomplete_beta rem reshard round rsqrt select_n "
    "sharding_constraint shift_left shift_right_arithmetic shift_right_logical sign sin sinh "
    "sqrt square stop_gradient sub tan tanh with_memory_space_constraint xor zeros_like zeta"
)


def is_elementwise(name: str) -> bool:
    """Return whether an element of the output depends on the same element of the operands."""
    return name in _NAMES


def shared_axis(operands: FollowedOperands) -> Place:
    """Return the one place of all operands that have examples."""
    axes = [axis for _, axis in operands.axes]
    if any(axis != axes[0] for axis in axes) and operands.examples > 1:
        return Mixed("combines different examples: they are along different dimensions")
    return axes[0]


def aligned_dims(eqn: Any, operands: FollowedOperands, axis: Axis) -> dict[int, Axis]:
    """Return the constants that extend along the dimension of the examples."""
    rank = len(shape_of(eqn.outvars, 0))
    found = {}
    for i, place in enumerate(operands.places):
        shape = shape_of(eqn.invars, i)
        if place is None and len(shape) == rank and shape[axis.dim] > 1:
            found[i] = axis
    return found


_NAMES = frozenset(_ELEMENTWISE.split())


@axis_rule(*_ELEMENTWISE.split(), sliceable=True)
def elementwise(eqn: Any, operands: FollowedOperands) -> Followed:
    """Keep the dimension of the examples, which all operands must share."""
    axis = shared_axis(operands)
    if isinstance(axis, Axis):
        return Followed((axis,) * len(eqn.outvars), aligned_dims(eqn, operands, axis))
    return Followed((axis,) * len(eqn.outvars))


@axis_rule(
    "random_bits",
    "random_seed",
    "random_wrap",
    "random_unwrap",
    "random_fold_in",
    "random_split",
    "random_clone",
    "random_gamma",
    "threefry2x32",
)
def random(eqn: Any, operands: FollowedOperands) -> Followed:
    """Keep leading dimensions: there is a key for each example."""
    axis = shared_axis(operands)
    return Followed((axis,) * len(eqn.outvars))
