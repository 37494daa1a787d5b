"""Programs with `custom_vjp` and custom gradients."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import X3, Program, case, f32, many, once


def logged_vjp():
    """A square with a custom gradient of ten times, and logs in primal, fwd and bwd."""

    @jax.custom_vjp
    def square(x):
        sawlog.log("primal", x)
        return x * x

    def fwd(x):
        sawlog.log("fwd", x * 2)
        return x * x, x

    def bwd(x, ct):
        sawlog.log({"bwd": ct, "residual": x})
        return (10 * ct * x,)

    square.defvjp(fwd, bwd)
    return square


def differentiated(x):
    """The gradient of the sum of `logged_vjp`, and the logs of fwd and bwd; none of primal."""
    logs = {
        "fwd": once(x * 2),
        "bwd": once(np.ones(3, np.float32)),
        "residual": once(x),
    }
    return 10 * x, logs


@case("custom_vjp", args=(X3,), grad=False)
def custom_vjp_plain() -> Program:
    """Not differentiated: the primal function's log."""
    square = logged_vjp()

    def fun(x):
        return square(x)

    def answer(x):
        return x * x, {"primal": once(x)}

    return fun, answer


@case("custom_vjp", "fwd_bwd", "grad", args=(X3,), grad=False)
def custom_vjp_under_grad() -> Program:
    """Under grad: the logs of the forward and of the backward rule."""
    square = logged_vjp()

    def fun(x):
        return jax.grad(lambda v: (3 * square(v)).sum())(x)

    def answer(x):
        logs = {
            "fwd": once(x * 2),
            "bwd": once(np.full(3, 3, np.float32)),
            "residual": once(x),
        }
        return 30 * x, logs

    return fun, answer


@case("custom_vjp", "fwd_bwd", "grad", args=(X3,), grad=False)
def custom_vjp_one_name_everywhere() -> Program:
    """One name in the forward and the backward rule: in execution order, with steps."""

    @jax.custom_vjp
    def double(x):
        return x * 2

    def fwd(x):
        sawlog.log({"v": x}, step=0)
        return x * 2, None

    def bwd(_, ct):
        sawlog.log({"v": ct}, step=1)
        return (ct * 2,)

    double.defvjp(fwd, bwd)

    def fun(x):
        return jax.grad(lambda v: (double(v) * x).sum())(x)

    def answer(x):
        return x * 2, {"v": many([x, x], step=[0, 1])}

    return fun, answer


@case("custom_vjp", "fwd_bwd", "vjp", args=(X3,), grad=False)
def custom_vjp_pullback_not_called() -> Program:
    """The pullback is not called: no backward log."""
    square = logged_vjp()

    def fun(x):
        out, _ = jax.vjp(square, x)
        return out

    def answer(x):
        return x * x, {"fwd": once(x * 2)}

    return fun, answer


@case("custom_vjp", "scan", args=(X3,), grad=False)
def custom_vjp_in_scan() -> Program:
    """In a loop, not differentiated."""
    square = logged_vjp()

    def fun(xs):
        return lax.scan(lambda c, x: (c + square(x), None), jnp.float32(0), xs)[0]

    def answer(xs):
        return np.sum(xs * xs), {"primal": many(list(xs))}

    return fun, answer


@case("custom_vjp", "fwd_bwd", "scan", "grad", args=(X3,), grad=False)
def custom_vjp_in_scan_under_grad() -> Program:
    """In a loop under grad: forward in order, backward in the order of its execution."""
    square = logged_vjp()

    def fun(xs):
        def loss(v):
            return lax.scan(lambda c, x: (c + square(x), None), jnp.float32(0), v)[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        logs = {
            "fwd": many(list(xs * 2)),
            "bwd": many([f32(1.0)] * 3),
            "residual": many(list(xs[::-1])),
        }
        return 10 * xs, logs

    return fun, answer


@case("custom_vjp", "jit", args=(X3,), grad=False)
def custom_vjp_in_jit() -> Program:
    """In a jitted helper, called twice."""
    square = logged_vjp()

    @jax.jit
    def helper(x):
        return square(x) + 1

    def fun(x):
        return helper(helper(x))

    def answer(x):
        y = x * x + 1
        return y * y + 1, {"primal": many([x, y])}

    return fun, answer


@case("custom_vjp", "fwd_bwd", "jit", "grad", args=(X3,), grad=False)
def custom_vjp_in_jit_under_grad() -> Program:
    """In a jitted loss under grad."""
    square = logged_vjp()

    @jax.jit
    def loss(x):
        return square(x).sum()

    def fun(x):
        return jax.grad(loss)(x)

    return fun, differentiated


@case("custom_vjp", "fwd_bwd", "vmap", "grad", args=(X3,), grad=False)
def custom_vjp_under_vmap_of_grad() -> Program:
    """Per-example gradients: the batch leads."""
    square = logged_vjp()

    def fun(xs):
        return jax.vmap(jax.grad(square))(xs)

    return fun, differentiated


@case("custom_vjp", "vmap", args=(X3,), grad=False)
def custom_vjp_under_vmap() -> Program:
    """Mapped, not differentiated."""
    square = logged_vjp()

    def fun(xs):
        return jax.vmap(square)(xs)

    def answer(xs):
        return xs * xs, {"primal": once(xs)}

    return fun, answer
