"""Programs that differentiate loops, and derivatives inside loops."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, ZERO, Program, case, f32, many


@case("grad", "scan", args=(X3,))
def grad_of_scan() -> Program:
    """A loop under grad: once an iteration, in forward order."""

    def fun(xs):
        def loss(v):
            def body(carry, x):
                carry = carry + x * x
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), v)[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        return 2 * xs, {"carry": many(list(np.cumsum(xs * xs)))}

    return fun, answer


@case("grad", "scan", "reverse", args=(X3,))
def grad_of_reverse_scan() -> Program:
    """A reverse loop under grad: last index first."""

    def fun(xs):
        def loss(v):
            def body(carry, x):
                carry = carry + x * x
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), v, reverse=True)[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        return 2 * xs, {"carry": many(list(np.cumsum((xs * xs)[::-1])))}

    return fun, answer


@case("loop_invariant", "grad", "scan", args=(X3, ONE))
def grad_of_scan_loop_invariant() -> Program:
    """A value that does not change in the loop still counts once an iteration."""

    def fun(xs, w):
        def loss(w):
            def body(carry, x):
                sawlog.log({"w": w, "ww": w * w})
                return carry + w * x, None

            return lax.scan(body, jnp.float32(0), xs)[0]

        return jax.grad(loss)(w)

    def answer(xs, w):
        return np.sum(xs), {"w": many([w] * 3), "ww": many([w * w] * 3)}

    return fun, answer


@case("loop_invariant", "grad", "scan", "steps", args=(X3, ONE))
def grad_of_scan_invariant_value_with_step() -> Program:
    """The value is invariant, its step is not: they stay aligned."""

    def fun(xs, w):
        def loss(w):
            def body(i, x):
                sawlog.log({"w": w * 2}, step=i)
                return i + 1, w * x

            return lax.scan(body, 0, xs)[1].sum()

        return jax.grad(loss)(w)

    def answer(xs, w):
        return np.sum(xs), {"w": many([w * 2] * 3, step=range(3))}

    return fun, answer


@case("loop_invariant", "grad", "scan", "nested_loops", args=(M23, ONE))
def grad_of_nested_scans_loop_invariant() -> Program:
    """Invariant in the inner loop, in the outer one, and in both."""

    def fun(m, w):
        def loss(w):
            def inner(carry, x):
                sawlog.log("w", w)
                return carry + w * x, None

            def outer(carry, row):
                sawlog.log("row", row * w)
                scaled = row.sum() * w

                def middle(c, x):
                    sawlog.log("scaled", scaled)
                    return inner(c, x)

                return lax.scan(middle, carry, row)[0], None

            return lax.scan(outer, jnp.float32(0), m)[0]

        return jax.grad(loss)(w)

    def answer(m, w):
        scaled = [np.sum(row) * w for row in m for _ in row]
        logs = {"w": many([w] * 6), "row": many([row * w for row in m]), "scaled": many(scaled)}
        return np.sum(m), logs

    return fun, answer


@case("loop_invariant", "grad", "scan", "jit", args=(X3, ONE))
def grad_of_scan_invariant_in_jit() -> Program:
    """An invariant value logged in a jitted helper of the body."""

    @jax.jit
    def helper(w):
        sawlog.log("w", w * 3)
        return w * w

    def fun(xs, w):
        def loss(w):
            def body(carry, x):
                return carry + helper(w) * x, None

            return lax.scan(body, jnp.float32(0), xs)[0]

        return jax.grad(loss)(w)

    def answer(xs, w):
        return 2 * w * np.sum(xs), {"w": many([w * 3] * 3)}

    return fun, answer


@case("loop_invariant", "grad", "scan", args=(X3, ONE))
def grad_of_scan_invariant_and_varying() -> Program:
    """An invariant and a varying value under one name keep their turns."""

    def fun(xs, w):
        def loss(w):
            def body(carry, x):
                sawlog.log("v", w)
                carry = carry + w * x
                sawlog.log("v", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), xs)[0]

        return jax.grad(loss)(w)

    def answer(xs, w):
        carry, seen = ZERO, []
        for x in xs:
            carry = carry + w * x
            seen += [w, carry]
        return np.sum(xs), {"v": many(seen)}

    return fun, answer


@case("loop_invariant", "grad", "fori_loop", args=(ONE,))
def grad_of_fori_loop_invariant() -> Program:
    """The same in a fori_loop."""

    def fun(w):
        def loss(w):
            def body(i, carry):
                sawlog.log({"w": w, "carry": carry}, step=i)
                return carry * w

            return lax.fori_loop(0, 3, body, w)

        return jax.grad(loss)(w)

    def answer(w):
        logs = {
            "w": many([w] * 3, step=range(3)),
            "carry": many([w, w * w, w * w * w], step=range(3)),
        }
        return 4 * w * w * w, logs

    return fun, answer


@case("loop_invariant", "grad", "scan", "python_scalars", args=(X3,))
def grad_of_scan_constant() -> Program:
    """A constant logged in a loop under grad."""

    def fun(xs):
        def loss(v):
            def body(carry, x):
                sawlog.log({"one": 1.0})
                return carry + x * x, None

            return lax.scan(body, jnp.float32(0), v)[0]

        return jax.grad(loss)(xs)

    def answer(xs):
        return 2 * xs, {"one": many([f32(1.0)] * 3)}

    return fun, answer


@case("grad", "scan", args=(X3, ONE))
def grad_inside_scan() -> Program:
    """Gradient descent in a loop: one forward log a step."""

    def fun(xs, w):
        def body(w, x):
            def loss(w):
                residual = w - x
                sawlog.log("residual", residual)
                return residual * residual

            return w - 0.25 * jax.grad(loss)(w), None

        return lax.scan(body, w, xs)[0]

    def answer(xs, w):
        seen = []
        for x in xs:
            seen.append(w - x)
            w = w - np.float32(0.5) * (w - x)
        return w, {"residual": many(seen)}

    return fun, answer
