"""Functions with rules of their own: ``custom_jvp``, ``custom_vjp``, ``custom_linear_solve`` and
``custom_vmap``.

The user's rule goes on giving the outputs and their derivatives; the logged values are ordinary
functions of the inputs. Called plainly, both come from one evaluation of the function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p, linear_solve_p

from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.autodiff import jvp_of_moving
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import not_listening
from sawlog.jax._core.registry import register_rule
from sawlog.jax._core.stream import Streams

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
    ways = _TwoWays.of(walk, eqn, run, values)
    call, apart = jax.custom_jvp(ways.at_once), ways.apart

    def jvp(primals: Any, tangents: Any) -> Any:
        with not_listening():
            return jvp_of_moving(apart, primals, tangents)

    call.defjvp(jvp, symbolic_zeros=True)
    return ways.result(walk, call(ways.hoisted, ways.states, *values))


@register_rule(_compat.custom_vmap_p)
def custom_vmap(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The function runs as it is; mapped from outside, its rule gives the outputs."""
    inner = _compat.inner_jaxpr(eqn)
    run = functools.partial(walk.run, inner.jaxpr, inner.consts)
    ways = _TwoWays.of(walk, eqn, lambda *args: run(args), values)
    call, apart = jax.custom_batching.custom_vmap(ways.at_once), ways.apart

    @call.def_vmap
    def batch(axis_size: int, mapped: list[Any], *args: Any) -> Any:
        in_axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, tuple(mapped))
        with not_listening():
            outs = jax.vmap(apart, in_axes, axis_size=axis_size)(*args)
        return outs, jax.tree.map(lambda _: True, outs)

    return ways.result(walk, call(ways.hoisted, ways.states, *values))


@dataclasses.dataclass(frozen=True)
class _TwoWays:
    """An equation with logs, as functions of [hoisted, states, operands] that close over no tracer.

    ``at_once`` gives the outputs, logs and carry by one evaluation; ``apart`` gives the outputs by
    the equation itself, with the user's rule, and the rest as ``at_once`` does.
    """

    names: tuple[str, ...]
    states: list[Any]
    hoisted: list[Any]
    at_once: Callable[..., Any]
    apart: Callable[..., Any]

    @classmethod
    def of(
        cls, walk: Interpreter, eqn: Any, run: Callable[..., Result], values: Sequence[Any]
    ) -> _TwoWays:
        """Trace ``run`` once for both."""
        names = walk.carried_by(walk.sites_in(eqn))
        states = [walk.handler.carry[name] for name in names]
        leaves, tree = jax.tree.flatten((states, *values))
        out_tree: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            states, *args = jax.tree.unflatten(tree, leaves)
            with walk.carrying(names, states) as after:
                outs, streams = run(*args)
            flat_outs, structure = jax.tree.flatten((outs, streams, after()))
            out_tree.append(structure)
            return flat_outs

        closed = _compat.trace_flat(flat, [_compat.typeof(leaf) for leaf in leaves], "a function")
        closed, hoisted = _compat.hoist_consts(closed)
        plain = walk.without_logs(eqn)

        def at_once(hoisted: list[Any], *args: Any) -> Any:
            outs = jaxpr_as_fun(closed)(*hoisted, *jax.tree.leaves(args))
            return jax.tree.unflatten(out_tree[0], outs)

        def apart(hoisted: list[Any], states: list[Any], *args: Any) -> Any:
            with lowering_marks.dropping():  # also of what the user's rules log
                outs = plain(*args)
            return outs, *at_once(hoisted, states, *args)[1:]

        return cls(names, states, hoisted, at_once, apart)

    def result(self, walk: Interpreter, outs: Any) -> Result:
        """Take back the carry."""
        outs, streams, states = outs
        walk.handler.carry.update(zip(self.names, states, strict=True))
        return outs, streams
