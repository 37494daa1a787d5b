"""Functions with rules of their own: ``custom_jvp``, ``custom_vjp``, ``custom_linear_solve`` and
``custom_vmap``.

The user's rule goes on giving the outputs and their derivatives; the logged values are ordinary
functions of the inputs. Called plainly, both come from one evaluation of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, linear_solve_p

from sawlog.jax import _compat
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._primitive import unheard
from sawlog.jax._registry import register_rule
from sawlog.jax._stream import Streams

Result = tuple[list[Any], Streams]


@register_rule(custom_jvp_call_p, custom_vjp_call_p)
def custom_derivative(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The function runs as it is; differentiated from outside, its rule gives the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    return _with_own_derivative(
        walk, eqn, lambda *args: walk.run(inner.jaxpr, inner.consts, args), values
    )


@register_rule(linear_solve_p)
def custom_linear_solve(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The solver runs as it is; differentiated from outside, the linear solve is."""

    def run(*args: Any) -> Result:
        solve, own = _compat.linear_solver(eqn, args)
        return walk.run(solve.jaxpr, solve.consts, own)

    return _with_own_derivative(walk, eqn, run, values)


def _with_own_derivative(
    walk: Interpreter, eqn: Any, run: Callable[..., Result], values: Sequence[Any]
) -> Result:
    """Call ``run``, whose outputs are differentiated as those of the equation without logs."""
    names, at_once, apart = _two_ways(walk, eqn, run)
    call = jax.custom_jvp(at_once)

    @call.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        with unheard():
            return jax.jvp(apart, primals, tangents)

    return _called(walk, names, call, values)


@register_rule(_compat.custom_vmap_p)
def custom_vmap(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The function runs as it is; mapped from outside, its rule gives the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    names, at_once, apart = _two_ways(
        walk, eqn, lambda *args: walk.run(inner.jaxpr, inner.consts, args)
    )
    call = jax.custom_batching.custom_vmap(at_once)

    @call.def_vmap
    def batch(axis_size: int, mapped: list[Any], *args: Any) -> Any:
        in_axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, tuple(mapped))
        with unheard():
            outs = jax.vmap(apart, in_axes, axis_size=axis_size)(*args)
        return outs, jax.tree.map(lambda _: True, outs)

    return _called(walk, names, call, values)


def _two_ways(
    walk: Interpreter, eqn: Any, run: Callable[..., Result]
) -> tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]:
    """Outputs, logs and carry by one evaluation, or the outputs apart, by the user's rule."""
    plain, names = walk.without_logs(eqn), walk.carried_by(walk.sites_in(eqn))

    def at_once(states: Any, *args: Any) -> Any:
        with walk.carrying(names, states) as after:
            outs, streams = run(*args)
        return outs, streams, after()

    def apart(states: Any, *args: Any) -> Any:
        return plain(*args), *at_once(states, *args)[1:]

    return names, at_once, apart


def _called(
    walk: Interpreter, names: Sequence[str], call: Callable[..., Any], values: Sequence[Any]
) -> Result:
    outs, streams, states = call([walk.handler.carry[name] for name in names], *values)
    walk.handler.carry.update(zip(names, states, strict=True))
    return outs, streams
