"""Equations of JAX's own primitives: read the programs inside, bind with other ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core.primitives import copy_p

from sawlog.jax._compat import private
from sawlog.jax._compat.private import UNSPECIFIED, ClosedJaxpr, Jaxpr, JaxprEqn
from sawlog.jax._compat.tracing import inline_consts
from sawlog.jax._compat.values import is_reference


def subjaxprs(params: dict[str, Any]) -> list[Any]:
    """Return every jaxpr among the parameters of an equation, open or closed."""
    found: list[Any] = []
    stack = list(params.values())
    while stack:
        value = stack.pop(0)
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            stack = [*value, *stack]
        elif isinstance(value, dict):
            stack = [*value.values(), *stack]
        elif is_frozen_dataclass(value):
            stack = [*vars(value).values(), *stack]
    return found


def is_frozen_dataclass(value: Any) -> bool:
    """Return whether this is a frozen dataclass, as the parameters of ``pallas_call`` are."""
    options = getattr(type(value), "__dataclass_params__", None)
    return bool(options is not None and options.frozen and hasattr(value, "__dict__"))


def inner_jaxpr(eqn: JaxprEqn) -> Any:
    """Return the program that an equation of ``jit``, ``checkpoint`` or ``custom_jvp`` calls."""
    for name in ("jaxpr", "call_jaxpr", "call", "fwd_jaxpr"):
        if name in eqn.params:
            return eqn.params[name]
    raise AssertionError(eqn.primitive)


def uses_references(eqn: JaxprEqn) -> bool:
    """Return whether an equation takes references (``jax.new_ref``), or makes some inside."""
    makes = any(
        private.core.internal_mutable_array_effect in p.effects for p in subjaxprs(eqn.params)
    )
    return makes or any(is_reference(atom.aval) for atom in eqn.invars)


def bind_equation(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Bind one equation unchanged in the active trace."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def bind_jit(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any], after: int
) -> list[Any]:
    """Bind a ``jit`` of a program with inputs ``before`` its own and ``after`` more outputs."""
    params, count = eqn.params, len(before)
    params = {
        **params,
        "jaxpr": closed,
        "in_shardings": (UNSPECIFIED,) * count + tuple(params["in_shardings"]),
        "in_layouts": (None,) * count + tuple(params["in_layouts"]),
        "donated_invars": (False,) * count + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + (UNSPECIFIED,) * after,
        "out_layouts": tuple(params["out_layouts"]) + (None,) * after,
    }
    return list(eqn.primitive.bind(*before, *values, **params))


def may_be_inlined(eqn: JaxprEqn) -> bool:
    """Return whether a ``jit`` inside a program has no effect of its own on the compiled one."""
    params = eqn.params
    plain = all(s is UNSPECIFIED for s in (*params["in_shardings"], *params["out_shardings"]))
    layouts = all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
    return plain and layouts and not any(params["donated_invars"])


def bind_checkpoint(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """Bind a ``checkpoint`` of a program with inputs ``before`` its own."""
    jaxpr, consts = inline_consts(closed)
    before, params = [*consts, *before], eqn.params
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = (True,) * len(before) + prevent_cse
    params = {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}
    return list(eqn.primitive.bind(*before, *values, **params))


def checkpointed(eqn: JaxprEqn, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under a ``checkpoint`` with the options of an equation."""
    params = eqn.params
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):  # one for each operand; those of the function are others
        prevent_cse = any(prevent_cse)
    return jax.checkpoint(fun, prevent_cse=prevent_cse, policy=params["policy"])


def branches_of(eqn: JaxprEqn) -> tuple[ClosedJaxpr, ...]:
    """Return the branches of a ``cond`` or ``switch``."""
    return tuple(eqn.params["branches"])


def bind_branches(eqn: JaxprEqn, values: Sequence[Any], branches: Sequence[Any]) -> list[Any]:
    """Bind a ``cond`` with other branches."""
    return list(eqn.primitive.bind(*values, **{**eqn.params, "branches": tuple(branches)}))


def with_branches(eqn: JaxprEqn, branches: Sequence[Any]) -> JaxprEqn:
    """Replace the branches of an equation of ``cond`` by others of the same types."""
    return eqn.replace(params={**eqn.params, "branches": tuple(branches)})


def with_equations(closed: ClosedJaxpr, eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """Replace the equations of a program by others that define the same variables."""
    return ClosedJaxpr(closed.jaxpr.replace(eqns=list(eqns)), closed.consts)


def without_stops(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace each ``stop_gradient`` of a program, however deep, by a copy; the same if none."""
    eqns = [_without_stops(eqn) for eqn in closed.jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, closed.jaxpr.eqns, strict=True)):
        return closed
    return with_equations(closed, eqns)


def _without_stops(eqn: JaxprEqn) -> JaxprEqn:
    if eqn.primitive.name == "stop_gradient":
        return eqn.replace(primitive=copy_p, params={})
    params = {name: _value_without_stops(value) for name, value in eqn.params.items()}
    if all(params[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params)


def _value_without_stops(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return without_stops(value)
    if isinstance(value, Jaxpr):
        closed = ClosedJaxpr(value, ())
        followed = without_stops(closed)
        return value if followed is closed else followed.jaxpr
    if isinstance(value, (tuple, list)) and any(isinstance(v, (ClosedJaxpr, Jaxpr)) for v in value):
        every = [_value_without_stops(each) for each in value]
        same = all(new is old for new, old in zip(every, value, strict=True))
        return value if same else type(value)(every)
    return value


def equations_of_each(eqn: JaxprEqn) -> list[JaxprEqn]:
    """Return an equation for each operand of one that does the same to all of them.

    Parameters that are tuples have an element for each operand.
    """
    return [
        eqn.replace(
            invars=[var],
            outvars=[out],
            params={
                name: each[i : i + 1] if isinstance(each, tuple) else each
                for name, each in eqn.params.items()
            },
        )
        for i, (var, out) in enumerate(zip(eqn.invars, eqn.outvars, strict=True))
    ]


def linear_solver(eqn: JaxprEqn, values: Sequence[Any]) -> tuple[ClosedJaxpr, list[Any]]:
    """Return the solver of a ``custom_linear_solve``, and its operands."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    return solve, [*values[start : start + lengths.solve], *values[sum(lengths) :]]


def bind_linear_solve(
    eqn: JaxprEqn, values: Sequence[Any], change: Callable[[ClosedJaxpr], ClosedJaxpr], first: Any
) -> list[Any]:
    """Bind a ``custom_linear_solve`` of changed programs, each with ``first`` as one more input."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    pairs = list(zip(lengths, jaxprs, strict=True))
    operands, start = [], 0
    for count, inner in pairs:
        operands += [*([] if inner is None else [first]), *values[start : start + count]]
        start += count
    params = {
        "const_lengths": type(lengths)(*(n + (inner is not None) for n, inner in pairs)),
        "jaxprs": type(jaxprs)(*(None if inner is None else change(inner) for inner in jaxprs)),
    }
    return list(eqn.primitive.bind(*operands, *values[start:], **params))


@dataclasses.dataclass(frozen=True)
class ShardMap:
    """A ``shard_map``: an open jaxpr that runs on each shard."""

    jaxpr: Any
    mesh: Any
    axes: tuple[str, ...]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    check_vma: bool

    @classmethod
    def read(cls, eqn: JaxprEqn) -> ShardMap:
        """Read the parameters of an equation; ``axes`` are those that it makes manual."""
        params = eqn.params
        manual = params["newly_manual_axes"]
        axes = tuple(name for name in params["mesh"].axis_names if name in manual)
        specs = tuple(params["in_specs"]), tuple(params["out_specs"])
        return cls(params["jaxpr"], params["mesh"], axes, *specs, bool(params["check_vma"]))
