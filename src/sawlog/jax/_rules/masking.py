"""Masks: give every log of a program a condition, and bind it again.

The logs of a program are not only its equations. A ``custom_jvp`` or ``custom_vjp`` may log in its
rules, which JAX traces when the program is differentiated. A program that is masked before that
keeps its derivatives: the rules are traced as they would have been, and masked as well.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, linear_solve_p

from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import (
    PASSING_PRIMITIVES,
    SITE_PRIMITIVES,
    has_site_effect,
    is_listening,
)
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams


class MaskLogs(Handler):
    """A handler that adds a condition to every log."""

    primitives = (*SITE_PRIMITIVES, *PASSING_PRIMITIVES)

    def __init__(self, ran: Any, branch: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__()
        self.ran = ran
        self._branch = branch

    def by(self, ran: Any) -> MaskLogs:
        """Return a handler for the same condition, given as another value."""
        return MaskLogs(ran, self._branch)

    def wants(self, site: Site) -> bool:
        """Return True for every log."""
        del site
        return True

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Bind the log again, masked by the condition."""
        self._bind(primitive, site, operands, params)
        return ()

    def passing(self, primitive: Any, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Bind a ``log_cotangent`` again, masked by the condition."""
        return list(self._bind(primitive, site, operands, {}))

    def _bind(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Any:
        # The axes of the condition are those of the vmaps around the branch or loop. They lead;
        # those of vmaps inside follow.
        ran = arrays.broadcast(self.ran, arrays.leading(operands[0], site.batch))
        if site.masked:
            *operands, mask = operands
            ran = ran & mask
        branches = site.branches + self._branch
        masked = dataclasses.replace(site, masked=True, branches=branches)
        return primitive.bind(*operands, ran, site=masked, **params)


def run_masked(inner: Any, args: Sequence[Any], mask: MaskLogs) -> list[Any]:
    """Evaluate an inner program with a mask on every log, also on those of its derivatives."""
    return _Masking(mask).run(inner.jaxpr, inner.consts, args)[0]


def has_logs(closed: Any) -> bool:
    """Return whether a program contains a log, or a ``log_cotangent``, which has no effect.

    Rules for derivatives that log count as well.
    """
    if has_site_effect(closed.effects):
        return True
    return is_listening() and (_has_passing(closed.jaxpr) or bool(_late_sites(closed.jaxpr)))


def _has_passing(jaxpr: Any) -> bool:
    return any(
        eqn.primitive in PASSING_PRIMITIVES
        or any(
            _has_passing(getattr(inner, "jaxpr", inner)) for inner in _compat.subjaxprs(eqn.params)
        )
        for eqn in jaxpr.eqns
    )


class _Masking(Interpreter):
    """An interpreter that also masks what JAX traces later, to differentiate."""

    handler: MaskLogs

    def sites_in(self, eqn: Any) -> tuple[Site, ...]:
        """Return the logs inside an equation, with those of its derivative."""
        late = _late_sites_in(eqn) if is_listening() else []
        return tuple(dict.fromkeys((*super().sites_in(eqn), *late)))

    def rule(self, eqn: Any) -> Any:
        """Return the rule for an equation: one with a custom derivative keeps it."""
        if is_listening() and eqn.primitive in _DERIVED:
            return _DERIVED[eqn.primitive]
        return super().rule(eqn)


# -- derivatives -----------------------------------------------------------------------------------


def _forward(interpreter: Any, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Mask a ``custom_jvp``: its function, and its rule."""
    mask, inner = interpreter.handler, _function_of(eqn)
    outputs = [var.aval for var in eqn.outvars]

    @jax.custom_jvp
    def call(ran: Any, *values: Any) -> list[Any]:
        return run_masked(inner, values, mask.by(ran))

    def jvp(primals: Any, tangents: Any) -> Any:
        (ran, *values), (_, *changes) = primals, tangents
        moving = tuple(i for i, t in enumerate(changes) if not isinstance(t, SymbolicZero))
        program = _jvp_of(eqn, moving)
        found = iter(run_masked(program, [*values, *(changes[i] for i in moving)], mask.by(ran)))
        outs = [next(found) for _ in outputs]
        return outs, [next(found) if _has_gradient(x) else _no_gradient(x) for x in outputs]

    call.defjvp(jvp, symbolic_zeros=True)
    return list(call(mask.ran, *values)), ()


def _reverse(interpreter: Any, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Mask a ``custom_vjp``: its function, and both rules."""
    mask, inner = interpreter.handler, _function_of(eqn)
    outputs = [var.aval for var in eqn.outvars]

    @jax.custom_vjp
    def call(ran: Any, *values: Any) -> list[Any]:
        return run_masked(inner, values, mask.by(ran))

    def forward(ran: Any, *values: Any) -> Any:
        program, tree = _forward_of(eqn)
        found = run_masked(program, values, mask.by(ran))
        return found[: len(outputs)], (ran, jax.tree.unflatten(tree, found[len(outputs) :]))

    def backward(kept: Any, gradients: Any) -> Any:
        ran, pull = kept
        program, leaves = _backward_of(pull, outputs, gradients)
        found = iter(run_masked(program, leaves, mask.by(ran)))
        return (None, *(next(found) if _has_gradient(v.aval) else None for v in eqn.invars))

    call.defvjp(forward, backward)
    return list(call(mask.ran, *values)), ()


def _linear_solve(interpreter: Any, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Mask a ``custom_linear_solve``: all of its functions, with the condition as a constant."""
    mask = interpreter.handler

    def masked(inner: Any) -> Any:
        def flat(ran: Any, *args: Any) -> list[Any]:
            return run_masked(inner, args, mask.by(ran))

        avals = [_compat.typeof(mask.ran), *inner.in_avals]
        return _compat.trace_flat(flat, avals, "a linear solve")

    return _compat.bind_linear_solve(eqn, values, masked, mask.ran), ()


def _operation(interpreter: Any, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Mask an operation that is an object (``HiPrim``): its function, and its rules."""
    rule = _reverse if _compat.differentiates_backwards(eqn.params) else _forward
    return rule(interpreter, eqn, values)


def _function_of(eqn: Any) -> Any:
    """Return the program that an equation runs where it is not differentiated."""
    if eqn.primitive is not _compat.call_hi_primitive_p:
        return _compat.inner_jaxpr(eqn)
    fun = _compat.hi_primitive_function(eqn.params)
    return _compat.trace_flat(fun, [var.aval for var in eqn.invars], "an operation")


_DERIVED: dict[Any, Callable[..., Any]] = {
    custom_jvp_call_p: _forward,
    custom_vjp_call_p: _reverse,
    linear_solve_p: _linear_solve,
    _compat.call_hi_primitive_p: _operation,
}


def _late_sites(jaxpr: Any, order: int = 2) -> list[Site]:
    """Return the logs that show when a program is differentiated, up to that many times."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.params:
            found += _late_sites_in(eqn, order)
            for inner in _compat.subjaxprs(eqn.params):
                found += _late_sites(getattr(inner, "jaxpr", inner), order)
    return found


def _late_sites_in(eqn: Any, order: int = 2) -> list[Site]:
    """Return the logs in the rules for the derivative of an equation."""
    found: list[Site] = []
    for rule in _rules_of(eqn) if order else ():
        found += Interpreter(MaskLogs(None)).sites_of(rule)
        found += _late_sites(rule.jaxpr, order - 1)
    return found


def _rules_of(eqn: Any) -> list[Any]:
    """Return the programs that JAX would trace to differentiate an equation."""
    if eqn.primitive not in (custom_jvp_call_p, custom_vjp_call_p, _compat.call_hi_primitive_p):
        return []
    backwards = eqn.primitive is custom_vjp_call_p
    if eqn.primitive is _compat.call_hi_primitive_p:
        backwards = _compat.differentiates_backwards(eqn.params)
    try:
        return [_vjp_of(eqn) if backwards else _jvp_of(eqn, _moving(eqn))]
    except Exception:  # raised again where it is differentiated
        return []


def _jvp_of(eqn: Any, moving: tuple[int, ...]) -> Any:
    """Return the program that maps inputs and the tangents of some to outputs and tangents."""
    avals = [var.aval for var in eqn.invars]

    def flat(*given: Any) -> list[Any]:
        values, tangents = given[: len(avals)], given[len(avals) :]
        bind = functools.partial(_bind_moving, eqn, values, moving)
        outs, changes = jax.jvp(bind, [values[i] for i in moving], list(tangents))
        kept = [x for x, var in zip(changes, eqn.outvars, strict=True) if _has_gradient(var.aval)]
        return [*outs, *kept]

    tangents = [avals[i].to_tangent_aval() for i in moving]
    return _compat.trace_flat(flat, [*avals, *tangents], "a derivative")


def _forward_of(eqn: Any) -> tuple[Any, Any]:
    """Return the program of the forward pass, and the tree of what it keeps for the backward."""
    tree: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        outs, pull = _pulled(eqn, values)
        leaves, structure = jax.tree.flatten(pull)
        tree.append(structure)
        return [*outs, *leaves]

    closed = _compat.trace_flat(flat, [var.aval for var in eqn.invars], "a forward pass")
    return closed, tree[0]


def _vjp_of(eqn: Any) -> Any:
    """Return the program of the forward and the backward pass."""
    ins, outs = ([var.aval for var in vars] for vars in (eqn.invars, eqn.outvars))

    def flat(*given: Any) -> list[Any]:
        found, pull = _pulled(eqn, given[: len(ins)])
        return [*found, *_gradients(pull, outs, given[len(ins) :])]

    gradients = [x.to_tangent_aval() for x in outs if _has_gradient(x)]
    return _compat.trace_flat(flat, [*ins, *gradients], "a derivative")


def _backward_of(pull: Any, outputs: Sequence[Any], gradients: Sequence[Any]) -> tuple[Any, list]:
    """Return the program of a backward pass, and its inputs."""
    leaves, tree = jax.tree.flatten(pull)
    given = [x for x, aval in zip(gradients, outputs, strict=True) if _has_gradient(aval)]

    def flat(*args: Any) -> list[Any]:
        kept = jax.tree.unflatten(tree, args[: len(leaves)])
        return _gradients(kept, outputs, args[len(leaves) :])

    inputs = [*leaves, *given]
    return _compat.trace_flat(flat, list(map(_compat.typeof, inputs)), "a backward pass"), inputs


def _pulled(eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Any]:
    moving = _moving(eqn)
    bind = functools.partial(_bind_moving, eqn, values, moving)
    return jax.vjp(bind, *(values[i] for i in moving))


def _gradients(pull: Any, outputs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    rest = iter(given)
    return list(pull([next(rest) if _has_gradient(x) else _no_gradient(x) for x in outputs]))


def _bind_moving(eqn: Any, values: Sequence[Any], moving: Sequence[int], *some: Any) -> list[Any]:
    """Bind an equation with some of its operands replaced."""
    full = list(values)
    for i, value in zip(moving, some, strict=True):
        full[i] = value
    return _compat.bind_equation(eqn, full)


def _moving(eqn: Any) -> tuple[int, ...]:
    """Return the operands that can have a tangent."""
    return tuple(i for i, var in enumerate(eqn.invars) if _has_gradient(var.aval))


def _has_gradient(aval: Any) -> bool:
    return _compat.has_gradient(aval)


def _no_gradient(aval: Any) -> Any:
    return np.zeros(aval.shape, jax.dtypes.float0)
