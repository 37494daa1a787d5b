"""Factors of uses: inputs and cotangents whose outer products are the gradients of examples.

A factored use sees the constant as an array whose dimensions are groups, outputs and inputs. Its
gradient for each example is a sum over positions of outer products of the inputs,
``[examples, positions, *groups, ins]``, and the cotangents,
``[examples, positions, *groups, outs]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Split
from sawlog.jax._capture.slices import split
from sawlog.jax._capture.uses import ConstantUse, Rows


@dataclasses.dataclass(frozen=True)
class UseFactors:
    """The factors of a use.

    Args:
        shape: The shape of the constant, with dimensions split as the use sees them.
        groups, outs, ins: Dimensions of ``shape``.
        inputs: Maps the operands to ``[examples, positions, *groups, ins]``; for a lookup, to ids
            ``[examples, positions]``.
        cotangents: Maps the cotangent of the output and the operands to
            ``[examples, positions, *groups, outs]``.
        lookup: Whether the inputs are ids of rows, one-hot.
        out_dims: The dimensions of the output that are ``outs``, in this order.
        kept: The operands that ``cotangents`` needs, by position.
        always: Whether rows are computed from factors, for an equation of single examples is not
            possible.
    """

    shape: tuple[int, ...]
    groups: tuple[int, ...]
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    inputs: Callable[[Sequence[Any]], Any]
    cotangents: Callable[[Any, Any], Any]
    lookup: bool = False
    out_dims: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    always: bool = False


FactorRule = Callable[[Any, ConstantUse], UseFactors | None]

_rules: dict[str, FactorRule] = {}


def factor_rule(name: str) -> Callable[[FactorRule], FactorRule]:
    """Register the factors of uses by the primitive of this name."""

    def register(rule: FactorRule) -> FactorRule:
        _rules[name] = rule
        return rule

    return register


def factors_of(eqn: Any, use: ConstantUse) -> UseFactors | None:
    """Return the factors of a use; None if its primitive has no rule for it."""
    rule = _rules.get(eqn.primitive.name)
    own = use.places[use.index]
    if rule is None or own is not None or use.constant.uniform:
        return None
    return rule(eqn, use)


def is_product(eqn: Any) -> bool:
    """Return whether an equation multiplies with a parameter and adds up products."""
    return eqn.primitive.name in _rules and eqn.primitive.name != "gather"


@factor_rule("dot_general")
def dot_general(eqn: Any, use: ConstantUse) -> UseFactors | None:
    """Any product: free dimensions are positions, shared ones are groups."""
    w, x = use.index, 1 - use.index
    axis, at = use.places[x], use.outs[0]
    if not isinstance(axis, (Axis, Split)) or not isinstance(at, (Axis, Split)):
        return None
    dims = _compat.Dot.read(eqn)
    groups = sorted(zip(dims.batch[w], dims.batch[x], range(len(dims.batch[w])), strict=True))
    contract = sorted(zip(dims.contract[w], dims.contract[x], strict=True))
    used = {*dims.batch[w], *dims.contract[w]}
    outs = [d for d in range(len(use.shapes[w])) if d not in used]
    free = [d for d in range(len(use.shapes[x])) if d not in dims.batch[x] + dims.contract[x]]
    count = len(dims.batch[0])
    first_x, first_w = (count, count + len(free)) if w else (count + len(outs), count)
    positions = [first_x + i for i in range(len(free))]
    out_dims = [first_w + i for i in range(len(outs))]
    x_order = [free, [each[1] for each in groups], [each[1] for each in contract]]
    g_order = [positions, [each[2] for each in groups], out_dims]

    def inputs(operands: Sequence[Any]) -> Any:
        return _arranged(split(operands[x], axis, use.examples), x_order)

    def cotangents(cotangent: Any, operands: Sequence[Any]) -> Any:
        del operands
        return _arranged(split(cotangent, at, use.examples), g_order)

    return UseFactors(
        tuple(use.shapes[w]),
        tuple(each[0] for each in groups),
        tuple(outs),
        tuple(each[0] for each in contract),
        inputs,
        cotangents,
        out_dims=tuple(out_dims),
    )


def _arranged(array: Any, order: Sequence[Sequence[int]]) -> Any:
    """Return ``[examples, positions, *groups, features]`` of an array ``[examples, ...]``."""
    positions, groups, features = order
    array = jnp.transpose(array, (0, *(d + 1 for d in (*positions, *groups, *features))))
    sizes = array.shape[1:]
    end = len(positions) + len(groups)
    kept = sizes[len(positions) : end]
    return jnp.reshape(
        array,
        (array.shape[0], math.prod(sizes[: len(positions)]), *kept, math.prod(sizes[end:])),
    )


@factor_rule("conv_general_dilated")
def conv(eqn: Any, use: ConstantUse) -> UseFactors | None:
    """Factor a kernel: inputs are the windows under it, and output pixels are positions."""
    dims, axis, at = _compat.Conv.read(eqn), use.places[0], use.outs[0]
    if use.index != 1 or dims.batch_groups != 1:
        return None
    if not isinstance(axis, (Axis, Split)) or not isinstance(at, (Axis, Split)):
        return None
    images, pixels_of = first_dimension(axis, dims.lhs[0]), first_dimension(at, dims.out[0])
    if images is None or pixels_of is None:
        return None
    kernel = use.shapes[1]
    groups, spatial = dims.groups, list(dims.rhs[2:])
    outs = kernel[dims.rhs[0]] // groups
    shape = list(kernel)
    grouped = groups > 1
    if grouped:
        shape[dims.rhs[0] : dims.rhs[0] + 1] = [groups, outs]
    moved = [d + (grouped and d > dims.rhs[0]) for d in range(len(kernel))]
    of_inputs = sorted((dims.rhs[1], *spatial))
    # the windows are [channels, *spatial]; the features of inputs are in the order of the kernel
    order = [0 if d == dims.rhs[1] else 1 + spatial.index(d) for d in of_inputs]

    def inputs(operands: Sequence[Any]) -> Any:
        image = jnp.transpose(operands[0], dims.lhs)
        windows = _windows(image, [kernel[d] for d in spatial], dims)
        count, pixels = windows.shape[0], math.prod(windows.shape[2:])
        channels = kernel[dims.rhs[1]]
        parts = jnp.reshape(
            windows, (count, groups, channels, *(kernel[d] for d in spatial), pixels)
        )
        last = len(spatial) + 3
        parts = jnp.transpose(parts, (0, last, 1, *(2 + i for i in order)))
        parts = jnp.reshape(parts, (count, pixels, *([groups] if grouped else []), -1))
        return _positions(split(parts, images, use.examples))

    def cotangents(cotangent: Any, operands: Sequence[Any]) -> Any:
        del operands
        image = jnp.transpose(cotangent, (dims.out[0], *dims.out[2:], dims.out[1]))
        sizes = image.shape
        features = (groups, outs) if grouped else (outs,)
        image = jnp.reshape(image, (sizes[0], math.prod(sizes[1:-1]), *features))
        return _positions(split(image, pixels_of, use.examples))

    return UseFactors(
        tuple(shape),
        (dims.rhs[0],) if grouped else (),
        (moved[dims.rhs[0]] + grouped,),
        tuple(moved[d] for d in of_inputs),
        inputs,
        cotangents,
        out_dims=() if grouped else (dims.out[1],),
    )


def _windows(image: Any, kernel: Sequence[int], dims: _compat.Conv) -> Any:
    """Return windows ``[images, channels * window, *pixels]`` of ``[images, channels, ...]``."""
    return jax.lax.conv_general_dilated_patches(
        image,
        kernel,
        dims.strides,
        dims.padding,
        dims.lhs_dilation,
        dims.rhs_dilation,
        precision=jax.lax.Precision.HIGHEST,
    )


def first_dimension(place: Axis | Split, dim: int) -> Axis | Split | None:
    """Return a place within one dimension, as that of the first one; None if it is elsewhere."""
    parts = (place,) if isinstance(place, Axis) else place.parts
    if any(part.dim != dim for part in parts):
        return None
    if isinstance(place, Axis):
        return place.at(0)
    return Split(tuple(part.at(0) for part in parts), place.sizes)


def _positions(parts: Any) -> Any:
    """Merge the positions of ``[examples, images, pixels, ...]``."""
    sizes = parts.shape
    return jnp.reshape(parts, (sizes[0], sizes[1] * sizes[2], *sizes[3:]))


@factor_rule("gather")
def gather(eqn: Any, use: ConstantUse) -> UseFactors | None:
    """Factor a lookup of whole rows of a table, along any dimension."""
    dims, axis, at = _compat.Gather.read(eqn), use.places[1], use.outs[0]
    table = use.shapes[0]
    if use.index or dims.batching or len(dims.indexed) != 1 or dims.collapsed != dims.indexed:
        return None
    row = dims.indexed[0]
    rest = [d for d in range(len(table)) if d != row]
    if not isinstance(axis, (Axis, Split)) or not isinstance(at, (Axis, Split)):
        return None
    if any(dims.sizes[d] != table[d] for d in rest):
        return None
    positions = [d for d in range(len(eqn.outvars[0].aval.shape)) if d not in dims.offset]
    clips, size = _compat.gather_clips(eqn), table[row]

    def ids_of(operands: Sequence[Any]) -> Any:
        ids = split(operands[1], axis, use.examples)
        return jnp.reshape(ids, (use.examples, -1))

    def inputs(operands: Sequence[Any]) -> Any:
        return jnp.clip(ids_of(operands), 0, size - 1)

    def cotangents(cotangent: Any, operands: Sequence[Any]) -> Any:
        order = [positions, [], list(dims.offset)]
        parts = _arranged(split(cotangent, at, use.examples), order)
        if clips:
            return parts
        ids = ids_of(operands)  # rows out of bounds are not those of the table
        valid = (ids >= 0) & (ids < size)
        return jnp.where(valid[..., None], parts, jnp.zeros((), parts.dtype))

    return UseFactors(
        tuple(table),
        (),
        tuple(rest),
        (row,),
        inputs,
        cotangents,
        lookup=True,
        kept=(1,),
        out_dims=tuple(dims.offset),
    )


@factor_rule("ragged_dot_general")
def ragged_dot(eqn: Any, use: ConstantUse) -> UseFactors | None:
    """Factor a matrix for each group of rows; operand 2 is the group of each row."""
    ragged, axis, at = _compat.RaggedDot.read(eqn), use.places[0], use.outs[0]
    plain = ragged.dot == _compat.Dot(((1,), (1,)), ((), ()))
    if use.index != 1 or not plain or ragged.ragged != (0,) or ragged.groups != (0,):
        return None
    if not isinstance(axis, (Axis, Split)) or first_dimension(axis, 0) is None:
        return None
    if not isinstance(at, (Axis, Split)) or first_dimension(at, 0) is None:
        return None
    count = use.shapes[1][0]

    def spread(rows: Any, groups: Any) -> Any:
        parts = split(rows, axis, use.examples)
        own = split(groups, axis, use.examples)[..., None] == jnp.arange(count)
        return jnp.where(own[..., None], parts[:, :, None, :], jnp.zeros((), rows.dtype))

    return UseFactors(
        tuple(use.shapes[1]),
        (0,),
        (2,),
        (1,),
        lambda operands: spread(operands[0], operands[2]),
        lambda cotangent, operands: spread(cotangent, operands[2]),
        kept=(2,),
        always=True,
    )


def by_factors(use: ConstantUse, factors: UseFactors) -> Rows:
    """Return the rows of a use from its factors."""
    dims = (*factors.groups, *factors.outs, *factors.ins)
    order = [0, *(dims.index(dim) + 1 for dim in range(len(dims)))]

    def rows(cotangents: Sequence[Any], operands: Sequence[Any]) -> Any:
        left, right = factors.cotangents(cotangents[0], operands), factors.inputs(operands)
        made = jnp.einsum("bt...l,bt...r->b...lr", left, right)
        made = jnp.reshape(made, (made.shape[0], *(factors.shape[dim] for dim in dims)))
        return jnp.reshape(jnp.transpose(made, order), (made.shape[0], *use.shapes[use.index]))

    return rows
