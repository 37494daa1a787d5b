"""Programs that a transformation must refuse, by a clear error and never by silence."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, Program, case, many, once

HERE = "errors.py"


def mismatch(*tags: str, words: tuple[str, ...] = ("v", HERE)) -> Any:
    """One name with two types: only `tap` can do with it."""
    return case(
        "mismatch",
        *tags,
        args=(X3,),
        vmap=False,
        grad=False,
        tap=False,
        spool_error="LogMismatchError",
        error_words=words,
    )


@case("while_loop", args=(ONE,), vmap=False, grad=False, spool_error="UnsupportedLoopError")
def while_loop() -> Program:
    """The number of iterations is not known: spool refuses, tap streams."""

    def fun(x):
        def body(v):
            sawlog.log("v", v)
            return v * 2

        return lax.while_loop(lambda v: v < 10, body, x)

    def answer(x):
        seen = []
        while x < 10:
            seen.append(x)
            x = x * 2
        return x, {"v": many(seen)}

    return fun, answer


@case(
    "while_loop",
    "fori_loop",
    args=(ONE, np.int32(3)),
    vmap=False,
    grad=False,
    spool_error="UnsupportedLoopError",
)
def fori_loop_traced_bound() -> Program:
    """A fori_loop whose bound is an argument."""

    def fun(x, n):
        def body(i, v):
            sawlog.log({"v": v}, step=i)
            return v + i

        return lax.fori_loop(0, n, body, x)

    def answer(x, n):
        seen = []
        for i in range(int(n)):
            seen.append(x)
            x = x + np.float32(i)
        return x, {"v": many(seen, step=range(3))}

    return fun, answer


@case(
    "reduce",
    args=(X3,),
    vmap=False,
    grad=False,
    spool_error="UnsupportedPrimitiveError",
    tap_error="UnsupportedPrimitiveError",
    error_words=("reduce", HERE, "register_rule"),
)
def reduce_with_logging_reducer() -> Program:
    """`lax.reduce` with a log in its reducer: plain and strip work, the others refuse."""

    def fun(x):
        def add(a, b):
            sawlog.log("a", a)
            return a + b

        return lax.reduce(x, np.float32(0), add, (0,))

    def answer(x):
        return np.sum(x), {}

    return fun, answer


@mismatch()
def mismatched_shapes() -> Program:
    """Two shapes under one name."""

    def fun(x):
        sawlog.log("v", x)
        sawlog.log("v", x.sum())
        return x

    def answer(x):
        return x, {}

    return fun, answer


@mismatch()
def mismatched_dtypes() -> Program:
    """Two dtypes under one name, in two branches."""

    def fun(x):
        def yes(y):
            sawlog.log("v", y)
            return y

        def no(y):
            sawlog.log("v", y.astype(jnp.int32))
            return y

        return lax.cond(x[0] > 0, yes, no, x)

    def answer(x):
        return x, {}

    return fun, answer


@mismatch("pytree_value")
def mismatched_structures() -> Program:
    """Two pytree structures under one name."""

    def fun(x):
        sawlog.log({"v": {"a": x}})
        sawlog.log({"v": {"b": x}})
        return x

    def answer(x):
        return x, {}

    return fun, answer


@mismatch("steps", words=("v", "step", HERE))
def step_given_only_sometimes() -> Program:
    """A step at one site, none at the other."""

    def fun(x):
        sawlog.log({"v": x}, step=1)
        sawlog.log({"v": x})
        return x

    def answer(x):
        return x, {}

    return fun, answer


@mismatch("scan", "jit")
def mismatched_shapes_across_a_loop() -> Program:
    """One shape in a jitted loop body, another outside."""

    def fun(x):
        @jax.jit
        def body(carry, y):
            sawlog.log("v", y)
            return carry, None

        lax.scan(body, 0, x)
        sawlog.log("v", x)
        return x

    def answer(x):
        return x, {}

    return fun, answer


@case("mismatch", "argnames", args=(X3,), vmap=False, grad=False, options={"argnames": "good"})
def mismatch_of_unselected_name() -> Program:
    """A mismatch under a name that was not asked for is nobody's business."""

    def fun(x):
        sawlog.log({"v": x, "good": x})
        sawlog.log({"v": x.sum()})
        return x

    def answer(x):
        return x, {"good": once(x)}

    return fun, answer
