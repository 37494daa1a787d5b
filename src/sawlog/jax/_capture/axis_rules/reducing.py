"""Reductions, sums along a dimension, sorting, pooling, and operations on matrices."""

from __future__ import annotations

import dataclasses
from typing import Any

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Mixed, Summed
from sawlog.jax._capture.axis_rules.elementwise import aligned_dims, shared_axis
from sawlog.jax._capture.axis_rules.table import (
    SUM,
    Followed,
    FollowedOperands,
    all_mixed,
    axis_rule,
    shape_of,
)


@axis_rule(
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "argmax",
    "argmin",
    "reduce",
)
def reduce(eqn: Any, operands: FollowedOperands) -> Followed:
    """Reduce other dimensions."""
    axis = shared_axis(operands)
    if not isinstance(axis, Axis):
        return Followed((axis,) * len(eqn.outvars))
    axes = _compat.reduced_axes(eqn)
    if axis.dim in axes:
        if eqn.primitive.name == "reduce_sum":
            return Followed((SUM,))
        return all_mixed(eqn, "reduces over the examples of the batch")
    return Followed((axis.at(axis.dim - sum(dim < axis.dim for dim in axes)),) * len(eqn.outvars))


@axis_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort")
def along(eqn: Any, operands: FollowedOperands) -> Followed:
    """Accumulate or sort along another dimension."""
    axis = shared_axis(operands)
    if isinstance(axis, Axis) and axis.dim == _compat.operated_axis(eqn):
        return all_mixed(eqn, "combines the examples of the batch")
    return Followed((axis,) * len(eqn.outvars))


@axis_rule("top_k", "approx_top_k")
def top_k(eqn: Any, operands: FollowedOperands) -> Followed:
    """Select along the last dimension."""
    ((_, axis),) = operands.axes
    shape, out = shape_of(eqn.invars, 0), shape_of(eqn.outvars, 0)
    if shape[axis.dim] != out[axis.dim] or axis.dim == len(shape) - 1:
        return all_mixed(eqn, "selects some of the examples")
    return Followed((axis,) * len(eqn.outvars))


@axis_rule("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window", "cumred")
def pooling(eqn: Any, operands: FollowedOperands) -> Followed:
    """Pool over windows of other dimensions."""
    ((i, axis), *more) = operands.axes
    if i or more:
        return all_mixed(eqn, "starts from a value of one example")
    if _compat.windows(eqn)[axis.dim] != (1, 1, 1, 1, (0, 0)):
        return all_mixed(eqn, "pools over the examples of the batch")
    return Followed((axis,) * len(eqn.outvars))


_MATRIX = (
    "cholesky eigh eig lu lu_pivots_to_permutation householder_product geqrf qr svd schur "
    "hessenberg tridiagonal tridiagonal_solve cholesky_update"
)


@axis_rule(*_MATRIX.split(), sliceable=True)
def matrix(eqn: Any, operands: FollowedOperands) -> Followed:
    """Compute with the matrices in the last two dimensions."""
    axis = shared_axis(operands)
    if not isinstance(axis, Axis):
        return Followed((axis,) * len(eqn.outvars))
    for i, place in operands.axes:
        if place.dim >= len(shape_of(eqn.invars, i)) - _own_dimensions(eqn):
            return all_mixed(eqn, "computes with a matrix whose rows or columns are examples")
    return Followed((axis,) * len(eqn.outvars), aligned_dims(eqn, operands, axis))


@axis_rule("triangular_solve", sliceable=True)
def triangular_solve(eqn: Any, operands: FollowedOperands) -> Followed:
    """Solve for each right-hand side; examples may be the right-hand sides of one matrix."""
    ((i, axis), *more) = operands.axes
    if i == 1 and not more and axis.dim == _compat.right_hand_sides(eqn):
        return Followed((axis,))
    return matrix(eqn, operands)


def _own_dimensions(eqn: Any) -> int:
    name = eqn.primitive.name
    return 1 if name == "lu_pivots_to_permutation" else 2


@axis_rule("fft")
def fft(eqn: Any, operands: FollowedOperands) -> Followed:
    """Transform the last dimensions."""
    ((_, axis),) = operands.axes
    if axis.dim >= len(shape_of(eqn.invars, 0)) - _compat.transformed_dimensions(eqn):
        return all_mixed(eqn, "transforms along the examples of the batch")
    return Followed((axis,))


def as_summed(followed: Followed) -> Followed:
    """Return sums over examples as ``Summed``, where a declared sum or mean is expected."""
    outs = (
        Summed() if isinstance(out, Mixed) and out.why == SUM.why else out for out in followed.outs
    )
    return dataclasses.replace(followed, outs=tuple(outs))
