"""Programs with `custom_jvp`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import X3, Program, case, many, once


def logged_jvp():
    """A square with a custom derivative of 10, and logs in the primal and in the rule."""

    @jax.custom_jvp
    def square(x):
        sawlog.log("primal", x)
        return x * x

    @square.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        sawlog.log("rule", x * 2)
        return x * x, 10 * t

    return square


@case("custom_jvp", args=(X3,), grad=False)
def custom_jvp_plain() -> Program:
    """Not differentiated: the primal function's log."""
    square = logged_jvp()

    def fun(x):
        return square(x) + 1

    def answer(x):
        return x * x + 1, {"primal": once(x)}

    return fun, answer


@case("custom_jvp", "grad", args=(X3,), grad=False)
def custom_jvp_under_grad() -> Program:
    """Under grad the rule runs in place of the primal function."""
    square = logged_jvp()

    def fun(x):
        return jax.grad(lambda v: square(v).sum())(x)

    def answer(x):
        return np.full(3, 10, np.float32), {"rule": once(x * 2)}

    return fun, answer


def square_with_logged_tangent() -> Any:
    """A square whose rule logs its input and its tangent."""

    @jax.custom_jvp
    def square(x):
        return x * x

    @square.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        sawlog.log({"tangent": t})
        sawlog.log({"x": x})
        return x * x, 2 * x * t

    return square


@case("custom_jvp", "jvp", args=(X3,), grad=False)
def custom_jvp_tangent_forward() -> Program:
    """A log of the tangent is seen in forward mode."""

    square = square_with_logged_tangent()

    def fun(x):
        return jax.jvp(square, (x,), (x + 1,))

    def answer(x):
        return (x * x, 2 * x * (x + 1)), {"tangent": once(x + 1), "x": once(x)}

    return fun, answer


@case("custom_jvp", "grad", args=(X3,), grad=False)
def custom_jvp_tangent_reverse() -> Program:
    """In reverse mode the tangent is never computed: only the other log is seen."""

    square = square_with_logged_tangent()

    def fun(x):
        return jax.grad(lambda v: square(v).sum())(x)

    def answer(x):
        return 2 * x, {"x": once(x)}

    return fun, answer


@case("custom_jvp", "jit", "scan", args=(X3,), grad=False)
def custom_jvp_in_scan_and_jit() -> Program:
    """In a loop, in a jit, not differentiated."""
    square = logged_jvp()

    def fun(xs):
        @jax.jit
        def body(carry, x):
            return carry + square(x), None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        return np.sum(xs * xs), {"primal": many(list(xs))}

    return fun, answer


@case("custom_jvp", "scan", "grad", args=(X3,), grad=False)
def custom_jvp_in_scan_under_grad() -> Program:
    """In a loop under grad: the rule's log once an iteration."""
    square = logged_jvp()

    def fun(xs):
        def loss(v):
            return lax.scan(lambda c, x: (c + square(x), None), jnp.float32(0), v)[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        return np.full(3, 10, np.float32), {"rule": many(list(xs * 2))}

    return fun, answer


@case("custom_jvp", "vmap", args=(X3,), grad=False)
def custom_jvp_under_vmap() -> Program:
    """Mapped, not differentiated."""
    square = logged_jvp()

    def fun(xs):
        return jax.vmap(square)(xs)

    def answer(xs):
        return xs * xs, {"primal": once(xs)}

    return fun, answer


@case("custom_jvp", args=(X3,))
def beside_a_custom_jvp() -> Program:
    """Functions of JAX with custom rules (relu, softmax) and no log of their own."""

    def fun(x):
        h = jax.nn.relu(x - 2)
        sawlog.log("h", h)
        return jax.grad(lambda v: jax.nn.relu(v).sum())(h + 1)

    def answer(x):
        return np.ones(3, np.float32), {"h": once(np.maximum(x - 2, 0))}

    return fun, answer
