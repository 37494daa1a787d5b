"""Programs with `custom_vjp` around or inside other transformations, differentiated or not."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import X3, Program, case, f32, many, once
from .custom_vjp import differentiated, logged_vjp


@case("custom_vjp", "nondiff_argnums", "fwd_bwd", "grad", args=(X3,), grad=False)
def custom_vjp_nondiff_argnums() -> Program:
    """A static argument of the rules."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def power(n, x):
        return x**n

    def fwd(n, x):
        sawlog.log("fwd", x * n)
        return x**n, x

    def bwd(n, x, ct):
        sawlog.log("bwd", ct * n)
        return (ct * n,)

    power.defvjp(fwd, bwd)

    def fun(x):
        return jax.grad(lambda v: power(2, v).sum())(x)

    def answer(x):
        two = np.full(3, 2, np.float32)
        return two, {"fwd": once(x * 2), "bwd": once(two)}

    return fun, answer


@case("custom_vjp", "scan", args=(X3,), grad=False)
def scan_in_custom_vjp() -> Program:
    """A loop in the primal function."""

    @jax.custom_vjp
    def total(xs):
        def body(carry, x):
            carry = carry + x
            sawlog.log("carry", carry)
            return carry, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    total.defvjp(lambda xs: (xs.sum(), None), lambda _, ct: (jnp.full(3, ct),))

    def fun(xs):
        return total(xs) * 2

    def answer(xs):
        return np.sum(xs) * 2, {"carry": many(list(np.cumsum(xs)))}

    return fun, answer


@case("custom_vjp", "scan", "fwd_bwd", "grad", args=(X3,), grad=False)
def scans_in_fwd_and_bwd() -> Program:
    """Loops in both rules."""

    @jax.custom_vjp
    def total(xs):
        return xs.sum()

    def running(name, xs):
        def body(carry, x):
            carry = carry + x
            sawlog.log(name, carry)
            return carry, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    total.defvjp(
        lambda xs: (running("fwd", xs), xs),
        lambda xs, ct: (jnp.full(3, running("bwd", xs * ct)),),
    )

    def fun(xs):
        return jax.grad(lambda v: total(v) * 2)(xs)

    def answer(xs):
        logs = {"fwd": many(list(np.cumsum(xs))), "bwd": many(list(np.cumsum(xs * 2)))}
        return np.full(3, np.sum(xs * 2)), logs

    return fun, answer


@case("custom_vjp", "checkpoint", "fwd_bwd", "grad", args=(X3,), grad=False)
def custom_vjp_in_checkpoint() -> Program:
    """A custom rule in a checkpointed function: each log once."""
    square = logged_vjp()

    def fun(x):
        return jax.grad(lambda v: jax.checkpoint(square)(v).sum())(x)

    return fun, differentiated


@case("custom_vjp", "fwd_bwd", "jacrev", args=(X3,), vmap=False, grad=False)
def custom_vjp_under_jacrev() -> Program:
    """The forward log has no axis; the backward rule runs for each row of the Jacobian."""

    @jax.custom_vjp
    def square(x):
        return x * x

    def fwd(x):
        sawlog.log("fwd", x)
        return x * x, x

    def bwd(x, ct):
        sawlog.log("bwd", ct)
        return (2 * ct * x,)

    square.defvjp(fwd, bwd)

    def fun(x):
        return jax.jacrev(square)(x)

    def answer(x):
        return np.diag(2 * x), {"fwd": once(x), "bwd": once(np.eye(3, dtype=np.float32))}

    return fun, answer


@case("custom_vjp", "cond", "fwd_bwd", "grad", args=(X3,), vmap=False, grad=False)
def custom_vjp_in_cond_under_grad() -> Program:
    """A custom rule in a branch under grad."""
    square = logged_vjp()

    def fun(x):
        def loss(v):
            return lax.cond(v[0] > 0, lambda w: square(w).sum(), lambda w: w.sum(), v)

        return jax.grad(loss)(x)

    return fun, differentiated


@case("custom_gradient", "grad", args=(X3,), grad=False)
def custom_gradient() -> Program:
    """`jax.custom_gradient`: the function and its pullback in one."""

    @jax.custom_gradient
    def square(x):
        sawlog.log("x", x)

        def pullback(ct):
            sawlog.log("ct", ct)
            return (7 * ct,)

        return x * x, pullback

    def fun(x):
        return jax.grad(lambda v: square(v).sum())(x)

    def answer(x):
        return np.full(3, 7, np.float32), {"x": once(x), "ct": once(np.ones(3, np.float32))}

    return fun, answer


# --- in a differentiated loop, on values that are not differentiated ------------------------------


def doubled_by_vjp(x):
    """Twice x, and a log."""

    @jax.custom_vjp
    def double(x):
        sawlog.log("x", x)
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    return double(x)


def doubled_by_composite(x):
    """The same as an operation with a name of its own."""

    def double(x):
        sawlog.log("x", x)
        return 2 * x

    return lax.composite(double, name="sawlog.double")(x)


def on_constants(double, around=lambda f: f) -> Program:
    """One result is not used, and one is the same in every iteration: JAX would hoist it."""

    def power(w):
        def body(c, x):
            double(x)
            return c * w * double(jnp.float32(0.5)), None

        return lax.scan(body, jnp.float32(1), jnp.arange(3.0))[0]

    def fun(w):
        return jax.grad(around(power))(w)

    def answer(w):
        entries = [value for i in range(3) for value in (f32(i), f32(0.5))]
        return 3 * w**2, {"x": many(entries)}

    return fun, answer


@case("custom_vjp", "scan", "grad", args=(f32(2.0),), grad=False)
def custom_vjp_on_constants_in_differentiated_scan() -> Program:
    """A function with a custom derivative stays in its loop."""
    return on_constants(doubled_by_vjp)


@case("custom_vjp", "scan", "grad", "checkpoint", args=(f32(2.0),), grad=False)
def custom_vjp_on_constants_in_checkpointed_scan() -> Program:
    """The same, where the loop runs twice."""
    return on_constants(doubled_by_vjp, jax.checkpoint)


@case("scan", "grad", args=(f32(2.0),), grad=False, vmap=False)
def composite_on_constants_in_differentiated_scan() -> Program:
    """JAX does not see that a composite has effects."""
    return on_constants(doubled_by_composite)
