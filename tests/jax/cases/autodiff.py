"""Programs with derivatives inside: each forward log is seen exactly once."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, Program, case, many, once


def cubes(x):
    """The sum of cubes, with the cubes logged."""
    y = x * x * x
    sawlog.log("cubes", y)
    return y.sum()


@case("grad", args=(X3,))
def grad() -> Program:
    """The forward log once, with the value of the plain call."""

    def fun(x):
        return jax.grad(cubes)(x)

    def answer(x):
        return 3 * x * x, {"cubes": once(x * x * x)}

    return fun, answer


@case("value_and_grad", args=(X3,))
def value_and_grad() -> Program:
    """value_and_grad, with an auxiliary output."""

    def fun(x):
        return jax.value_and_grad(lambda v: (cubes(v), v * 2), has_aux=True)(x)

    def answer(x):
        return ((np.sum(x * x * x), x * 2), 3 * x * x), {"cubes": once(x * x * x)}

    return fun, answer


@case("grad", "steps", args=(X3,))
def grad_with_logs_around() -> Program:
    """Logs before, in and after the derivative."""

    def fun(x):
        sawlog.log("v", x, step=0)

        def loss(y):
            sawlog.log("v", y * y, step=1)
            return (y * y).sum()

        g = jax.grad(loss)(x)
        sawlog.log("v", g, step=2)
        return g

    def answer(x):
        return 2 * x, {"v": many([x, x * x, 2 * x], step=range(3))}

    return fun, answer


@case("grad", args=(X3, ONE))
def grad_argnums() -> Program:
    """Two arguments differentiated, and logs of intermediate values of both."""

    def fun(x, s):
        def loss(x, s):
            z = x * s
            sawlog.log({"z": z, "s": s})
            return (z * z).sum()

        return jax.grad(loss, argnums=(0, 1))(x, s)

    def answer(x, s):
        grads = (2 * x * s * s, np.sum(2 * x * x * s))
        return grads, {"z": once(x * s), "s": once(s)}

    return fun, answer


@case("grad", "unused_result", args=(X3,))
def grad_logs_value_off_the_path() -> Program:
    """A logged value that the loss does not depend on."""

    def fun(x):
        def loss(y):
            sawlog.log({"off": jnp.exp2(y), "flag": y > 1, "rank": jnp.argmax(y)})
            return y.sum()

        return jax.grad(loss)(x)

    def answer(x):
        logs = {"off": once(np.exp2(x)), "flag": once(x > 1), "rank": once(np.int32(2))}
        return np.ones(3, np.float32), logs

    return fun, answer


@case("vjp", args=(X3,))
def vjp() -> Program:
    """The pullback, called twice, logs nothing again."""

    def fun(x):
        out, pullback = jax.vjp(cubes, x)
        return out, pullback(1.0)[0] + pullback(2.0)[0]

    def answer(x):
        return (np.sum(x * x * x), 9 * x * x), {"cubes": once(x * x * x)}

    return fun, answer


@case("jvp", args=(X3,))
def jvp() -> Program:
    """Forward mode: the log of the primal value."""

    def fun(x):
        return jax.jvp(cubes, (x,), (jnp.ones(3),))

    def answer(x):
        return (np.sum(x * x * x), np.sum(3 * x * x)), {"cubes": once(x * x * x)}

    return fun, answer


@case("linearize", args=(X3,))
def linearize() -> Program:
    """The linear map, applied twice, logs nothing again."""

    def fun(x):
        out, linear = jax.linearize(cubes, x)
        return out + linear(jnp.ones(3)) + linear(jnp.zeros(3))

    def answer(x):
        return np.sum(x * x * x) + np.sum(3 * x * x), {"cubes": once(x * x * x)}

    return fun, answer


@case("hessian", args=(X3,))
def hessian() -> Program:
    """No axis from the map inside of the hessian."""

    def fun(x):
        return jax.hessian(cubes)(x)

    def answer(x):
        return np.diag(6 * x), {"cubes": once(x * x * x)}

    return fun, answer


@case("jacfwd", args=(X3,))
def jacfwd() -> Program:
    """The Jacobian, forward."""

    def fun(x):
        def square(y):
            z = y * y
            sawlog.log("z", z)
            return z

        return jax.jacfwd(square)(x)

    def answer(x):
        return np.diag(2 * x), {"z": once(x * x)}

    return fun, answer


@case("jacrev", args=(X3,))
def jacrev() -> Program:
    """The Jacobian, backward."""

    def fun(x):
        def square(y):
            z = y * y
            sawlog.log("z", z)
            return z

        return jax.jacrev(square)(x)

    def answer(x):
        return np.diag(2 * x), {"z": once(x * x)}

    return fun, answer


@case("jacrev", "vmap", args=(X3,))
def jacrev_of_vmap() -> Program:
    """The mapped axis of the function stays, that of the Jacobian does not appear."""

    def fun(xs):
        def lane(x):
            sawlog.log("x", x * 2)
            return x * x

        return jax.jacrev(jax.vmap(lane))(xs)

    def answer(xs):
        return np.diag(2 * xs), {"x": once(xs * 2)}

    return fun, answer


@case("jacfwd", "scan", args=(X3,))
def jacfwd_of_scan() -> Program:
    """A loop under the forward Jacobian."""

    def fun(xs):
        def loop(v):
            def body(carry, x):
                carry = carry + x * x
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), v)[0]

        return jax.jacfwd(loop)(xs)

    def answer(xs):
        return 2 * xs, {"carry": many(list(np.cumsum(xs * xs)))}

    return fun, answer


@case("hessian", "scan", args=(X3,))
def hessian_of_scan() -> Program:
    """A loop under the hessian: once an iteration."""

    def fun(xs):
        def loop(v):
            def body(carry, x):
                carry = carry + x * x * x
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), v)[0]

        return jax.hessian(loop)(xs)

    def answer(xs):
        return np.diag(6 * xs), {"carry": many(list(np.cumsum(xs * xs * xs)))}

    return fun, answer


@case("grad", "jit", args=(X3,))
def grad_of_jit() -> Program:
    """A jitted loss."""

    def fun(x):
        return jax.grad(jax.jit(cubes))(x)

    def answer(x):
        return 3 * x * x, {"cubes": once(x * x * x)}

    return fun, answer


@case("grad", "jit", args=(X3,))
def jit_of_grad() -> Program:
    """A jitted gradient, called twice."""

    step = jax.jit(jax.grad(cubes))

    def fun(x):
        return step(step(x))

    def answer(x):
        y = 3 * x * x
        return 3 * y * y, {"cubes": many([x * x * x, y * y * y])}

    return fun, answer


@case("grad", "jit", "nested_jit", args=(X3,))
def grad_of_nested_jits() -> Program:
    """Logs at two levels of jit, one helper shared."""

    @jax.jit
    def square(x):
        sawlog.log("in", x)
        return x * x

    @jax.jit
    def loss(x):
        y = square(x)
        sawlog.log("mid", y)
        return square(y).sum()

    def fun(x):
        return jax.grad(loss)(x)

    def answer(x):
        return 4 * x * x * x, {"in": many([x, x * x]), "mid": once(x * x)}

    return fun, answer
