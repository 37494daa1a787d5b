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
    inner = eqn.params["call_jaxpr"]
    return _with_own_derivative(
        lambda *args: walk.run(inner.jaxpr, inner.consts, args), walk.without_logs(eqn), values
    )


@register_rule(linear_solve_p)
def custom_linear_solve(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The solver runs as it is; differentiated from outside, the linear solve is."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat

    def run(*args: Any) -> Result:
        own = [*args[start : start + lengths.solve], *args[sum(lengths) :]]
        return walk.run(solve.jaxpr, solve.consts, own)

    return _with_own_derivative(run, walk.without_logs(eqn), values)


def _with_own_derivative(
    run: Callable[..., Result], plain: Callable[..., list[Any]], values: Sequence[Any]
) -> Result:
    """Call ``run``, whose outputs are differentiated as those of ``plain``."""
    call = jax.custom_jvp(run)

    @call.defjvp
    def jvp(primals: Any, tangents: Any) -> Any:
        with unheard():
            return jax.jvp(lambda *args: (plain(*args), run(*args)[1]), primals, tangents)

    return call(*values)


@register_rule(_compat.custom_vmap_p)
def custom_vmap(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> Result:
    """The function runs as it is; mapped from outside, its rule gives the outputs."""
    inner, plain = eqn.params["call"], walk.without_logs(eqn)

    def run(*args: Any) -> Result:
        return walk.run(inner.jaxpr, inner.consts, args)

    call = jax.custom_batching.custom_vmap(run)

    @call.def_vmap
    def batch(axis_size: int, mapped: list[bool], *args: Any) -> Any:
        in_axes = tuple(0 if is_mapped else None for is_mapped in mapped)
        with unheard():
            apart = jax.vmap(lambda *a: (plain(*a), run(*a)[1]), in_axes, axis_size=axis_size)
            outs = apart(*args)
        return outs, jax.tree.map(lambda _: True, outs)

    return call(*values)
