"""Rules for ``custom_jvp``, ``custom_vjp``, ``custom_linear_solve`` and ``custom_vmap``.

The user's rule still computes the outputs and their derivatives; the logged values are ordinary
functions of the inputs. Without differentiation, one evaluation of the function computes both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, linear_solve_p

from sawlog.errors import UnsupportedPrimitiveError
from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.autodiff import jvp_with_symbolic_zeros
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import not_listening
from sawlog.jax._core.registry import register_rule
from sawlog.jax._core.stream import Streams

Result = tuple[list[Any], Streams]


@register_rule(custom_jvp_call_p, custom_vjp_call_p)
def custom_derivative(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """Evaluate the function; if it is differentiated, the user's rule computes the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    with_own_derivative = _with_own_derivative
    if eqn.primitive is custom_vjp_call_p and _compat.uses_references(eqn):
        with_own_derivative = _with_own_backward_rule
    return with_own_derivative(
        interpreter, eqn, lambda *args: interpreter.run(inner.jaxpr, inner.consts, args), values
    )


@register_rule(linear_solve_p)
def custom_linear_solve(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """Evaluate the solver; if it is differentiated, the linear solve is."""

    def run(*args: Any) -> Result:
        solve, own = _compat.linear_solver(eqn, args)
        return interpreter.run(solve.jaxpr, solve.consts, own)

    return _with_own_derivative(interpreter, eqn, run, values)


def _with_own_derivative(
    interpreter: Interpreter, eqn: Any, run: Callable[..., Result], values: Sequence[Any]
) -> Result:
    """Call ``run`` with the derivative of the equation without logs."""
    logged = _LoggedFunction.of(interpreter, eqn, run, values)
    call, separately = jax.custom_jvp(logged.together), logged.separately

    def jvp(primals: Any, tangents: Any) -> Any:
        with not_listening():
            return jvp_with_symbolic_zeros(separately, primals, tangents)

    call.defjvp(jvp, symbolic_zeros=True)
    return logged.result(interpreter, call(logged.hoisted, logged.states, *values))


def _with_own_backward_rule(
    interpreter: Interpreter, eqn: Any, run: Callable[..., Result], values: Sequence[Any]
) -> Result:
    """Do the same for a ``custom_vjp`` with references, which JAX has no ``custom_jvp`` for.

    A reference among the operands would change twice: by the user's rule, and by the evaluation
    that logs. Then the function cannot be differentiated.
    """
    logged = _LoggedFunction.of(interpreter, eqn, run, values)
    call, separately = jax.custom_vjp(logged.together), logged.separately

    def forward(*args: Any) -> Any:
        if any(map(_compat.is_reference, jax.tree.leaves(args))):
            raise _differentiated_outside(interpreter, eqn)
        with not_listening():
            return jax.vjp(separately, *args)

    call.defvjp(forward, lambda pull, gradients: pull(gradients))
    return logged.result(interpreter, call(logged.hoisted, logged.states, *values))


def _differentiated_outside(interpreter: Interpreter, eqn: Any) -> UnsupportedPrimitiveError:
    sites = ", ".join(site.where for site in interpreter.sites_in(eqn))
    return UnsupportedPrimitiveError(
        f"There is a log inside the custom_vjp function used at {_compat.source_line(eqn)}, which "
        "takes a reference (jax.Ref), and the program around spool or tap differentiates it. To "
        "collect the log, the function would have to run twice and change the reference twice. "
        f"The log is at {sites}. Hint: differentiate inside, as in spool(jax.grad(f)) instead of "
        "jax.grad(spool(f)), or remove the log with sawlog.strip(...)."
    )


@register_rule(_compat.custom_vmap_p)
def custom_vmap(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """Evaluate the function; if it is mapped, the user's rule computes the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    run = functools.partial(interpreter.run, inner.jaxpr, inner.consts)
    logged = _LoggedFunction.of(interpreter, eqn, lambda *args: run(args), values)
    call, separately = jax.custom_batching.custom_vmap(logged.together), logged.separately

    @call.def_vmap
    def batch(axis_size: int, mapped: list[Any], *args: Any) -> Any:
        in_axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, tuple(mapped))
        with not_listening():
            outs = jax.vmap(separately, in_axes, axis_size=axis_size)(*args)
        return outs, jax.tree.map(lambda _: True, outs)

    return logged.result(interpreter, call(logged.hoisted, logged.states, *values))


@dataclasses.dataclass(frozen=True)
class _LoggedFunction:
    """An equation with logs, as two functions that close over no tracer.

    Both map [hoisted, states, *operands] to (outputs, streams, states).

    Attributes:
        names: The names in the handler's carry that the logs update.
        states: The states under these names.
        hoisted: The tracers that the function closes over.
        together: Computes everything by one evaluation of the function.
        separately: Computes the outputs by the equation itself, with the user's rule, and the
            streams and states like ``together``.
    """

    names: tuple[str, ...]
    states: list[Any]
    hoisted: list[Any]
    together: Callable[..., Any]
    separately: Callable[..., Any]

    @classmethod
    def of(
        cls, interpreter: Interpreter, eqn: Any, run: Callable[..., Result], values: Sequence[Any]
    ) -> _LoggedFunction:
        """Trace ``run`` once for both functions."""
        names = interpreter.carried_by(interpreter.sites_in(eqn))
        states = [interpreter.handler.carry[name] for name in names]
        leaves, tree = jax.tree.flatten((states, *values))
        out_tree: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            states, *args = jax.tree.unflatten(tree, leaves)
            with interpreter.carrying(names, states) as after:
                outs, streams = run(*args)
            flat_outs, structure = jax.tree.flatten((outs, streams, after()))
            out_tree.append(structure)
            return flat_outs

        closed = _compat.trace_flat(flat, [_compat.typeof(leaf) for leaf in leaves], "a function")
        closed, hoisted = _compat.hoist_consts(closed)
        plain = interpreter.without_logs(eqn)

        def together(hoisted: list[Any], *args: Any) -> Any:
            outs = jaxpr_as_fun(closed)(*hoisted, *jax.tree.leaves(args))
            return jax.tree.unflatten(out_tree[0], outs)

        def separately(hoisted: list[Any], states: list[Any], *args: Any) -> Any:
            with lowering_marks.dropping():  # logs of the user's rules too
                outs = plain(*args)
            return outs, *together(hoisted, states, *args)[1:]

        return cls(names, states, hoisted, together, separately)

    def result(self, interpreter: Interpreter, outs: Any) -> Result:
        """Update the carry, and return outputs and streams."""
        outs, streams, states = outs
        interpreter.handler.carry.update(zip(self.names, states, strict=True))
        return outs, streams
