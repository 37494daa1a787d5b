"""Products: ``dot_general``, ``ragged_dot_general``, ``conv_general_dilated``."""

from __future__ import annotations

from typing import Any

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Mixed, Place
from sawlog.jax._capture.axis_rules.table import (
    Followed,
    FollowedOperands,
    all_mixed,
    axis_rule,
    shape_of,
)

_CONTRACTS = "adds up products over the examples of the batch"


@axis_rule("dot_general", sliceable=True)
def dot_general(eqn: Any, operands: FollowedOperands) -> Followed:
    """Keep a free or a batch dimension."""
    return dot(eqn, operands, _compat.Dot.read(eqn))


def dot(eqn: Any, operands: FollowedOperands, dims: _compat.Dot) -> Followed:
    """Return where the output of a product has the examples of its operands."""
    found: list[tuple[Place, int]] = []
    aligned: dict[int, Axis] = {}
    for i, axis in operands.axes[:2]:
        if axis.dim in dims.contract[i]:
            return Followed((Mixed(_CONTRACTS),))
        if axis.dim in dims.batch[i]:
            place = dims.batch[i].index(axis.dim)
            found.append((axis.at(place), i))
            other = 1 - i
            if operands.places[other] is None:
                aligned[other] = axis.at(dims.batch[other][place])
        else:
            found.append((axis.at(_free(eqn, dims, i).index(axis.dim) + _first(eqn, dims, i)), i))
    if len(found) == 2 and found[0][0] != found[1][0]:
        return all_mixed(eqn, "compares every example of the batch with every other one")
    return Followed((found[0][0],), aligned)


def _free(eqn: Any, dims: _compat.Dot, i: int) -> list[int]:
    """Return the dimensions of an operand that are neither contracted nor shared."""
    used = {*dims.contract[i], *dims.batch[i]}
    return [dim for dim in range(len(shape_of(eqn.invars, i))) if dim not in used]


def _first(eqn: Any, dims: _compat.Dot, i: int) -> int:
    """Return where the free dimensions of an operand begin in the output."""
    return len(dims.batch[0]) + (len(_free(eqn, dims, 0)) if i else 0)


@axis_rule("ragged_dot_general")
def ragged_dot(eqn: Any, operands: FollowedOperands) -> Followed:
    """Keep the rows of the left operand, whichever group they belong to.

    The sizes of groups count the rows of all examples; which group a row belongs to is data, as an
    index is.
    """
    ragged = _compat.RaggedDot.read(eqn)
    left, right = operands.places[:2]
    if isinstance(left, Mixed) or isinstance(right, Mixed):
        return Followed((left if isinstance(left, Mixed) else right,))
    if right is not None:
        return all_mixed(eqn, "multiplies with groups that belong to examples")
    if not isinstance(left, Axis):
        return all_mixed(eqn, "multiplies constants in groups whose sizes depend on examples")
    if isinstance(operands.places[2], Mixed) and left.order is None:
        return all_mixed(eqn, "has groups whose sizes depend on all examples, of unsorted rows")
    if operands.places[2] is None and left.order is not None:
        return all_mixed(eqn, "has groups that depend on the position of sorted rows")
    if any(dim in ragged.dot.contract[0] for dim in ragged.ragged):
        return all_mixed(eqn, "adds up products of rows of different examples")
    axes = FollowedOperands((left, None), operands.known[:2], operands.examples)
    free = _free(eqn, ragged.dot, 0)
    if ragged.dot.batch[0] or left.dim not in free:
        return dot(eqn, axes, ragged.dot) if left.dim not in free else all_mixed(eqn, _CONTRACTS)
    return Followed((left.at(free.index(left.dim)),))


@axis_rule("conv_general_dilated", sliceable=True)
def conv(eqn: Any, operands: FollowedOperands) -> Followed:
    """Keep the batch dimension of the images, or examples that are groups of features."""
    dims = _compat.Conv.read(eqn)
    axes = dict(operands.axes)
    if set(axes) == {0} and axes[0].dim == dims.lhs[0] and dims.batch_groups == 1:
        return Followed((axes[0].at(dims.out[0]),))
    if set(axes) == {0, 1} and dims.batch_groups == 1:
        image, kernel = axes[0], axes[1]
        features = image.dim == dims.lhs[1] and kernel.dim == dims.rhs[0]
        # a kernel for each example: `vmap` makes the examples the outermost groups of features
        plain = image.order is None and kernel.order is None and image.outer == kernel.outer == 1
        if features and plain and dims.groups % operands.examples == 0:
            return Followed((Axis(dims.out[1], 1, kernel.inner),))
    return all_mixed(eqn, "convolves over the examples of the batch")
