"""Programs with `jit` inside."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, Program, case, many, once


@case("jit", args=(X3,))
def jit_inside() -> Program:
    """A log in a jitted helper."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        return helper(x) + 1

    def answer(x):
        return x * 2 + 1, {"x": once(x)}

    return fun, answer


@case("jit", args=(X3,))
def function_is_jitted() -> Program:
    """The function given to the transformation is a jitted one itself."""

    @jax.jit
    def fun(x):
        sawlog.log("x", x + 1)
        return x.sum()

    def answer(x):
        return np.sum(x), {"x": once(x + 1)}

    return fun, answer


@case("jit", "nested_jit", args=(X3,), order=("outer", "inner", "outer"))
def nested_jit() -> Program:
    """jit in jit, with logs at both levels."""

    @jax.jit
    def inner(x):
        sawlog.log("inner", x)
        return x * 2

    @jax.jit
    def outer(x):
        sawlog.log("outer", x)
        y = inner(x + 1)
        sawlog.log("outer", y)
        return y

    def fun(x):
        return outer(x) - 1

    def answer(x):
        y = (x + 1) * 2
        return y - 1, {"outer": many([x, y]), "inner": once(x + 1)}

    return fun, answer


@case("jit", "shared_jaxpr", args=(X3,))
def jitted_helper_twice() -> Program:
    """Two calls of a jitted helper share one cached jaxpr: two entries."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        return helper(helper(x))

    def answer(x):
        return x * 4, {"x": many([x, x * 2])}

    return fun, answer


@case("jit", "nested_jit", "shared_jaxpr", args=(X3,))
def jitted_helper_at_two_levels() -> Program:
    """One cached jaxpr, called directly and from another jit, twice each."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x + 1

    @jax.jit
    def middle(x):
        return helper(helper(x) * 2)

    def fun(x):
        a = helper(x)
        b = middle(a)
        c = middle(b)
        return helper(c)

    def answer(x):
        seen = []

        def helper(v):
            seen.append(v)
            return v + 1

        def middle(v):
            return helper(helper(v) * 2)

        out = helper(middle(middle(helper(x))))
        return out, {"x": many(seen)}

    return fun, answer


@case("jit", "shared_jaxpr", "scan", args=(X3,))
def jitted_helper_in_and_out_of_scan() -> Program:
    """One cached jaxpr in a loop and outside of it."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(xs):
        ys = jax.lax.map(helper, xs)
        return helper(ys[0]) + ys.sum()

    def answer(xs):
        ys = xs * 2
        return ys[0] * 2 + np.sum(ys), {"x": many([*xs, ys[0]])}

    return fun, answer


@case("jit", "static_args", args=(X3,))
def inner_jit_static_argument() -> Program:
    """Static arguments of an inner jit, by position and by name."""

    @functools.partial(jax.jit, static_argnums=1, static_argnames="how")
    def helper(x, n, how):
        y = x * n if how == "times" else x + n
        sawlog.log("y", y)
        return y

    def fun(x):
        return helper(x, 2, how="times") + helper(x, 3, how="plus")

    def answer(x):
        return x * 2 + (x + 3), {"y": many([x * 2, x + 3])}

    return fun, answer


@case("jit", "donation", args=(X3,))
def inner_jit_donates() -> Program:
    """An inner jit that donates its argument."""

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state):
        sawlog.log("state", state)
        return state + 1

    def fun(x):
        return update(update(x * 2))

    def answer(x):
        return x * 2 + 2, {"state": many([x * 2, x * 2 + 1])}

    return fun, answer


@case("jit", "kwargs", args=(X3,))
def inner_jit_keyword_arguments() -> Program:
    """Keyword arguments and pytrees through an inner jit."""

    @jax.jit
    def helper(x, *, params):
        y = x * params["w"] + params["b"]
        sawlog.log("y", y)
        return {"y": y}

    def fun(x):
        return helper(x, params={"w": 2.0, "b": x[0]})["y"]

    def answer(x):
        return x * 2 + x[0], {"y": once(x * 2 + x[0])}

    return fun, answer


@case("jit", "closure", args=(X3,))
def inner_jit_closes_over_tracer() -> Program:
    """An inner jit that closes over a value of the outer function."""

    def fun(x):
        scale = x.sum()

        @jax.jit
        def helper(y):
            z = y * scale
            sawlog.log("z", z)
            return z

        return helper(x)

    def answer(x):
        return x * np.sum(x), {"z": once(x * np.sum(x))}

    return fun, answer


@case("jit", args=(X3,))
def inner_jit_result_unused() -> Program:
    """A log survives although the result of its jit is not used."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        helper(x)
        return x

    def answer(x):
        return x, {"x": once(x)}

    return fun, answer


@case("jit", args=(ONE,))
def inner_jit_without_inputs() -> Program:
    """A jit with neither inputs nor outputs, only a log."""

    @jax.jit
    def helper():
        sawlog.log("constant", jnp.float32(4))

    def fun(x):
        helper()
        return x

    def answer(x):
        return x, {"constant": once(np.float32(4))}

    return fun, answer


@case("jit", "inline", args=(X3,))
def inner_jit_inline() -> Program:
    """`jit(inline=True)` leaves no call in the jaxpr."""

    @functools.partial(jax.jit, inline=True)
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        return helper(x) + helper(x + 1)

    def answer(x):
        return x * 2 + (x + 1) * 2, {"x": many([x, x + 1])}

    return fun, answer


@case("jit", "shared_jaxpr", args=(X3,))
def jitted_helper_two_shapes() -> Program:
    """One jitted helper, traced for two shapes, logging a scalar at each."""

    @jax.jit
    def helper(x):
        sawlog.log("sum", x.sum())
        return x.sum()

    def fun(x):
        return helper(x) * helper(x[:2])

    def answer(x):
        a, b = np.sum(x), np.sum(x[:2])
        return a * b, {"sum": many([a, b])}

    return fun, answer


@case("eval_shape", args=(X3,))
def eval_shape_inside() -> Program:
    """`jax.eval_shape` of a logging helper computes nothing, so logs nothing."""

    def helper(x):
        sawlog.log("ghost", x)
        return x[:2]

    def fun(x):
        shape = jax.eval_shape(helper, x).shape
        y = jnp.zeros(shape) + x[0]
        sawlog.log("y", y)
        return y

    def answer(x):
        y = np.zeros(2, np.float32) + x[0]
        return y, {"y": once(y)}

    return fun, answer


@case("jit", args=(X3,), grad=False, vmap=False)
def composite() -> Program:
    """A log in what an operation with a name of its own stands for."""

    def fun(x):
        def tangent(x):
            sawlog.log("x", x)
            return jnp.sin(x) / jnp.cos(x)

        return jax.lax.composite(tangent, name="sawlog.tangent")(x)

    def answer(x):
        return np.tan(x), {"x": once(x)}

    return fun, answer
