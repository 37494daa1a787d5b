"""Functions with rules of their own: ``custom_jvp``, ``custom_vjp``, ``custom_linear_solve`` and
``custom_vmap``.

The user's rule goes on giving the outputs and their derivatives; the logged values are ordinary
functions of the inputs. Called plainly, both come from one evaluation of the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, linear_solve_p

from sawlog.jax import _compat, _marks
from sawlog.jax._autodiff import jvp_of_moving
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

    def jvp(primals: Any, tangents: Any) -> Any:
        with unheard():
            return jvp_of_moving(apart, primals, tangents)

    call.defjvp(jvp, symbolic_zeros=True)
    return _called(walk, names, call, values)


@register_rule(_compat.custom_vmap_p)
def custom_vmap(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The function runs as it is; mapped from outside, its rule gives the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    plain = _plain(walk, eqn)
    names, at_once, _ = _two_ways(
        walk, eqn, lambda *args: walk.run(inner.jaxpr, inner.consts, args)
    )
    states = [walk.handler.carry[name] for name in names]
    at_once, hoisted = _closed_over(at_once, (states, *values))
    call = jax.custom_batching.custom_vmap(at_once)

    @call.def_vmap
    def batch(axis_size: int, mapped: list[Any], *args: Any) -> Any:
        def both(hoisted: Any, states: Any, *args: Any) -> Any:
            return plain(*args), *at_once(hoisted, states, *args)[1:]

        in_axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, tuple(mapped))
        with unheard():
            outs = jax.vmap(both, in_axes, axis_size=axis_size)(*args)
        return outs, jax.tree.map(lambda _: True, outs)

    return _called(walk, names, functools.partial(call, hoisted), values)


def _closed_over(fun: Callable[..., Any], args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """``fun`` with what it closes over as its first argument, and that: the number of a run, say.

    ``custom_vmap`` maps arguments, and nothing else.
    """
    leaves, tree = jax.tree.flatten(args)
    out_tree: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        outs, structure = jax.tree.flatten(fun(*jax.tree.unflatten(tree, leaves)))
        out_tree.append(structure)
        return outs

    closed = _compat.trace_flat(flat, [_compat.typeof(leaf) for leaf in leaves], "custom_vmap")
    closed, hoisted = _compat.hoist_consts(closed)

    def opened(hoisted: list[Any], *args: Any) -> Any:
        outs = jaxpr_as_fun(closed)(*hoisted, *jax.tree.leaves(args))
        return jax.tree.unflatten(out_tree[0], outs)

    return opened, hoisted


def _two_ways(
    walk: Interpreter, eqn: Any, run: Callable[..., Result]
) -> tuple[tuple[str, ...], Callable[..., Any], Callable[..., Any]]:
    """Outputs, logs and carry by one evaluation, or the outputs apart, by the user's rule."""
    plain, names = _plain(walk, eqn), walk.carried_by(walk.sites_in(eqn))

    def at_once(states: Any, *args: Any) -> Any:
        with walk.carrying(names, states) as after:
            outs, streams = run(*args)
        return outs, streams, after()

    def apart(states: Any, *args: Any) -> Any:
        return plain(*args), *at_once(states, *args)[1:]

    return names, at_once, apart


def _plain(walk: Interpreter, eqn: Any) -> Callable[..., list[Any]]:
    """The equation without logs; those that the user's rules hold are dropped as well."""
    bind = walk.without_logs(eqn)

    def plain(*args: Any) -> list[Any]:
        with _marks.dropping():
            return bind(*args)

    return plain


def _called(
    walk: Interpreter, names: Sequence[str], call: Callable[..., Any], values: Sequence[Any]
) -> Result:
    outs, streams, states = call([walk.handler.carry[name] for name in names], *values)
    walk.handler.carry.update(zip(names, states, strict=True))
    return outs, streams
