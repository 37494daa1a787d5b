"""Equations of JAX's own primitives: read the programs inside, bind with other ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sawlog.jax._compat.private import UNSPECIFIED, ClosedJaxpr, Jaxpr, JaxprEqn
from sawlog.jax._compat.tracing import inline_consts


def subjaxprs(params: dict[str, Any]) -> list[Any]:
    """Every jaxpr among the parameters of an equation, open or closed."""
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
        elif is_frozen(value):
            stack = [*vars(value).values(), *stack]
    return found


def is_frozen(value: Any) -> bool:
    """Whether this is a frozen dataclass, in which primitives such as ``pallas_call`` hold more."""
    options = getattr(type(value), "__dataclass_params__", None)
    return bool(options is not None and options.frozen and hasattr(value, "__dict__"))


def inner_jaxpr(eqn: JaxprEqn) -> Any:
    """The program that an equation of ``jit``, ``checkpoint``, ``custom_jvp`` or the like calls."""
    for name in ("jaxpr", "call_jaxpr", "call", "fwd_jaxpr"):
        if name in eqn.params:
            return eqn.params[name]
    raise AssertionError(eqn.primitive)


def bind_equation(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Run one equation as it stands, in the present trace."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def bind_jit(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any], after: int
) -> list[Any]:
    """Bind a ``jit`` with another program: more inputs in front, ``after`` more outputs behind."""
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


def bind_checkpoint(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """Bind a ``checkpoint`` with another program that takes more inputs in front."""
    jaxpr, consts = inline_consts(closed)
    before, params = [*consts, *before], eqn.params
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = (True,) * len(before) + prevent_cse
    params = {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}
    return list(eqn.primitive.bind(*before, *values, **params))


def branches_of(eqn: JaxprEqn) -> tuple[ClosedJaxpr, ...]:
    """The branches of a ``cond`` or ``switch``."""
    return tuple(eqn.params["branches"])


def bind_branches(eqn: JaxprEqn, values: Sequence[Any], branches: Sequence[Any]) -> list[Any]:
    """Bind a ``cond`` with other branches."""
    return list(eqn.primitive.bind(*values, **{**eqn.params, "branches": tuple(branches)}))


def with_branches(eqn: JaxprEqn, branches: Sequence[Any]) -> JaxprEqn:
    """The same equation of ``cond`` with other branches, of the same types."""
    return eqn.replace(params={**eqn.params, "branches": tuple(branches)})


def with_equations(closed: ClosedJaxpr, eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """The same program with other equations, which make the same variables."""
    return ClosedJaxpr(closed.jaxpr.replace(eqns=list(eqns)), closed.consts)


def linear_solver(eqn: JaxprEqn, values: Sequence[Any]) -> tuple[ClosedJaxpr, list[Any]]:
    """The program by which a ``custom_linear_solve`` solves, and its operands."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    return solve, [*values[start : start + lengths.solve], *values[sum(lengths) :]]


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
        """What the parameters of an equation say; ``axes`` are those that it makes manual."""
        params = eqn.params
        manual = params["newly_manual_axes"]
        axes = tuple(name for name in params["mesh"].axis_names if name in manual)
        specs = tuple(params["in_specs"]), tuple(params["out_specs"])
        return cls(params["jaxpr"], params["mesh"], axes, *specs, bool(params["check_vma"]))
