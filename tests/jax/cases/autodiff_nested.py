"""Programs that differentiate branches and mapped functions, and derivatives of derivatives."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .autodiff import cubes
from .base import M23, ONE, X3, X4, Program, case, many, once


@case("grad", "cond", args=(X3,), vmap=False)
def grad_of_cond() -> Program:
    """A branch under grad."""

    def fun(x):
        def loss(y):
            def yes(v):
                sawlog.log("yes", v)
                return (v * v).sum()

            def no(v):
                sawlog.log("yes", -v)
                return v.sum()

            return lax.cond(y[0] > 0, yes, no, y)

        return jax.grad(loss)(x)

    def answer(x):
        return 2 * x, {"yes": once(x)}

    return fun, answer


@case("grad", "cond", "cond_in_scan", args=(X4,), vmap=False)
def grad_of_cond_in_scan() -> Program:
    """A branch in a loop under grad."""

    def fun(xs):
        def loss(v):
            def body(carry, item):
                i, x = item

                def yes(w):
                    sawlog.log({"hit": w}, step=i)
                    return w * w

                return carry + lax.cond(x > 0, yes, lambda w: w, x), None

            return lax.scan(body, jnp.float32(0), (jnp.arange(4), v))[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        hits = [i for i in range(4) if xs[i] > 0]
        grads = np.where(xs > 0, 2 * xs, np.float32(1))
        return grads, {"hit": many([xs[i] for i in hits], step=hits)}

    return fun, answer


@case("grad", "vmap", args=(M23,))
def grad_of_vmap() -> Program:
    """A mapped loss under grad."""

    def fun(m):
        def lane(row):
            sawlog.log("row", row * 2)
            return (row * row).sum()

        return jax.grad(lambda v: jax.vmap(lane)(v).sum())(m)

    def answer(m):
        return 2 * m, {"row": once(m * 2)}

    return fun, answer


@case("grad", "vmap", args=(M23,))
def vmap_of_grad() -> Program:
    """Per-example gradients."""

    def fun(m):
        return jax.vmap(jax.grad(cubes))(m)

    def answer(m):
        return 3 * m * m, {"cubes": once(m * m * m)}

    return fun, answer


@case("grad", "vmap", "scan", args=(M23, ONE))
def vmap_of_grad_of_scan() -> Program:
    """Per-example gradients of a loop, with an invariant value."""

    def fun(m, w):
        def loss(w, row):
            def body(carry, x):
                carry = carry + w * x
                sawlog.log({"carry": carry, "w": w})
                return carry, None

            return lax.scan(body, jnp.float32(0), row)[0]

        return jax.vmap(jax.grad(loss), in_axes=(None, 0))(w, m)

    def answer(m, w):
        seen = list(np.cumsum(m * w, axis=1).T)
        logs = {"carry": many(seen), "w": many([np.full(2, w)] * 3)}
        return np.sum(m, axis=1), logs

    return fun, answer


@case("double_grad", args=(ONE,))
def double_grad() -> Program:
    """grad of grad: once."""

    def fun(x):
        def f(y):
            z = y * y * y
            sawlog.log("z", z)
            return z

        return jax.grad(jax.grad(f))(x)

    def answer(x):
        return 6 * x, {"z": once(x * x * x)}

    return fun, answer


@case("double_grad", args=(ONE,))
def grad_of_logging_gradient() -> Program:
    """A log of the first derivative within the second."""

    def fun(x):
        def slope(y):
            g = jax.grad(lambda z: z * z * z)(y)
            sawlog.log("slope", g)
            return g

        return jax.grad(slope)(x)

    def answer(x):
        return 6 * x, {"slope": once(3 * x * x)}

    return fun, answer


@case("hvp", args=(X3,))
def hessian_vector_product() -> Program:
    """Forward over reverse."""

    def fun(x):
        return jax.jvp(jax.grad(cubes), (x,), (jnp.ones(3),))[1]

    def answer(x):
        return 6 * x, {"cubes": once(x * x * x)}

    return fun, answer


@case("hvp", args=(X3,))
def hessian_vector_product_reverse() -> Program:
    """Reverse over reverse."""

    def fun(x):
        return jax.grad(lambda y: jnp.vdot(jax.grad(cubes)(y), jnp.ones(3)))(x)

    def answer(x):
        return 6 * x, {"cubes": once(x * x * x)}

    return fun, answer


@case("stop_gradient", "grad", args=(X3,))
def stop_gradient() -> Program:
    """A log of a value outside of the gradient's path."""

    def fun(x):
        def loss(y):
            target = lax.stop_gradient(y * 2)
            sawlog.log("target", target)
            return (y * target).sum()

        return jax.grad(loss)(x)

    def answer(x):
        return x * 2, {"target": once(x * 2)}

    return fun, answer
