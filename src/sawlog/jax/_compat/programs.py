"""Programs inside equations, and how values flow in and out of them; equations of layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.equations import branches_of, subjaxprs
from sawlog.jax._compat.loops import Scan, While
from sawlog.jax._compat.private import JaxprEqn, scan_p, while_p


@dataclasses.dataclass(frozen=True)
class InnerProgram:
    """A program inside an equation.

    Attributes:
        jaxpr: The open jaxpr.
        inputs: For each of its inputs, the position of the operand that it receives, or None.
        outputs: For each of its outputs, the position of the equation's output, or None.
        carry: The inputs and outputs that are the same value in the next iteration of a loop.
    """

    jaxpr: Any
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    carry: tuple[tuple[int, int], ...] = ()


def inner_programs(eqn: JaxprEqn) -> list[InnerProgram]:
    """Return the programs inside an equation, with the operands that they receive."""
    if eqn.primitive is while_p:
        return _of_while(eqn)
    if eqn.primitive is scan_p:
        loop = Scan.read(eqn.params)
        carry = tuple((loop.consts + i, i) for i in range(loop.carry))
        return [dataclasses.replace(_in_order(eqn, loop.body.jaxpr), carry=carry)]
    if "branches" in eqn.params:
        return [_in_order(eqn, branch.jaxpr, 1) for branch in branches_of(eqn)]
    return [_in_order(eqn, getattr(inner, "jaxpr", inner)) for inner in subjaxprs(eqn.params)]


def _in_order(eqn: JaxprEqn, jaxpr: Any, skipped: int = 0) -> InnerProgram:
    """Return a program that takes the operands in order, or unknown ones if the numbers differ."""
    ins, outs = len(jaxpr.invars), len(jaxpr.outvars)
    same = ins == len(eqn.invars) - skipped
    return InnerProgram(
        jaxpr,
        tuple(range(skipped, skipped + ins)) if same else (None,) * ins,
        tuple(range(outs)) if outs == len(eqn.outvars) else (None,) * outs,
    )


def _of_while(eqn: JaxprEqn) -> list[InnerProgram]:
    loop = While.read(eqn.params)
    of_cond, of_body, carried = loop.split(list(range(len(eqn.invars))))
    count = len(carried)
    body = InnerProgram(
        loop.body.jaxpr,
        (*of_body, *carried),
        tuple(range(count)),
        tuple((len(of_body) + i, i) for i in range(count)),
    )
    return [InnerProgram(loop.cond.jaxpr, (*of_cond, *carried), (None,)), body]


def feature_axis(eqn: JaxprEqn, operand: int) -> int | None:
    """Return the output axis of the features of a matrix product or convolution.

    Args:
        eqn: The equation.
        operand: The position of the weight among its operands.

    Returns:
        The axis of the output that only the weight has; None for other equations, and where the
        weight has none or several such axes.
    """
    if eqn.primitive.name == "conv_general_dilated":
        return int(eqn.params["dimension_numbers"].out_spec[1]) if operand == 1 else None
    if eqn.primitive.name != "dot_general":
        return None
    contracted, batch = eqn.params["dimension_numbers"]
    operands: list[Any] = list(eqn.invars[:2])
    free = [var.aval.ndim - len(contracted[i]) - len(batch[i]) for i, var in enumerate(operands)]
    if free[operand] != 1:
        return None
    return len(batch[0]) + (free[0] if operand == 1 else 0)


def moved_axis(eqn: JaxprEqn, axis: int) -> int | None:
    """Return where an axis of the first operand is in the output of an equation, if anywhere."""
    first: Any = eqn.invars[0]
    result: Any = eqn.outvars[0]
    given, out = first.aval.shape, result.aval.shape
    name = eqn.primitive.name
    if name == "transpose":
        return tuple(eqn.params["permutation"]).index(axis)
    if name == "broadcast_in_dim":
        return int(eqn.params["broadcast_dimensions"][axis])
    if name in ("reshape", "squeeze", "expand_dims"):
        return _same_axis(given, out, axis)
    return axis if given == out else None


def _same_axis(given: tuple[int, ...], out: tuple[int, ...], axis: int) -> int | None:
    """Return the axis of a reshaped array whose elements are those of ``axis``."""
    behind = _product(given[axis + 1 :])
    for place, size in enumerate(out):
        if size == given[axis] and _product(out[place + 1 :]) == behind:
            return place
    return None


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def wrap_differentiated(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Apply ``wrap`` to each function that ``jax.vjp``, ``jax.grad`` and the like differentiate."""
    plain: Any = private.ad.linearize

    @functools.wraps(plain)
    def linearize(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("is_vjp"):
            fun = wrap(fun)
        return plain(fun, *args, **options)

    private.ad.linearize = linearize  # type: ignore[assignment]
