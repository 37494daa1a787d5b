"""Linear solves, transposes and the like."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, ZERO, Program, case, f32, many, once


@case("custom_linear_solve", args=(X3,), grad=False)
def custom_linear_solve() -> Program:
    """A log in the solver; the matrix product that it calls logs too."""

    def fun(b):
        def matvec(x):
            sawlog.log("matvec", x)
            return x * 4

        def solve(matvec, b):
            guess = b / 4
            sawlog.log("residual", b - matvec(guess))
            return guess

        return lax.custom_linear_solve(matvec, b, solve, symmetric=True)

    def answer(b):
        return b / 4, {"matvec": once(b / 4), "residual": once(np.zeros(3, np.float32))}

    return fun, answer


@case("custom_linear_solve", "scan", args=(M23,), grad=False)
def custom_linear_solve_in_scan() -> Program:
    """A linear solve in a loop, beside a log of its result."""

    def fun(m):
        def solve(_, b):
            sawlog.log("b", b)
            return b / 2

        def body(carry, b):
            x = lax.custom_linear_solve(lambda v: v * 2, b, solve, symmetric=True)
            sawlog.log("x", x)
            return carry + x, None

        return lax.scan(body, jnp.zeros(3), m)[0]

    def answer(m):
        return np.sum(m / 2, axis=0), {"b": many(list(m)), "x": many(list(m / 2))}

    return fun, answer


@case("custom_linear_solve", "grad", args=(X3,))
def grad_beside_custom_linear_solve() -> Program:
    """Derivatives through a solve with logs around it."""

    def fun(b):
        def loss(b):
            sawlog.log("b", b)
            x = lax.custom_linear_solve(lambda v: v * 4, b, lambda _, r: r / 4, symmetric=True)
            sawlog.log("x", x)
            return (x * x).sum()

        return jax.grad(loss)(b)

    def answer(b):
        return b / 8, {"b": once(b), "x": once(b / 4)}

    return fun, answer


@case("custom_root", args=(f32(9.0),), vmap=False, grad=False)
def custom_root() -> Program:
    """A root finder with a log in its solver."""

    def fun(a):
        def solve(f, start):
            x = lax.fori_loop(0, 6, lambda _, x: x - f(x) / (2 * x), start)
            sawlog.log("root", x)
            return x

        return lax.custom_root(lambda x: x * x - a, a, solve, lambda g, y: y / g(1.0))

    def answer(a):
        x = a
        for _ in range(6):
            x = x - (x * x - a) / (2 * x)
        return x, {"root": once(x)}

    return fun, answer


@case("linear_transpose", args=(X3,))
def linear_transpose() -> Program:
    """The transpose never computes the linear input: its log is not seen, the others are."""

    def fun(ct):
        def linear(x):
            sawlog.log("input", x)
            return x * 3

        (out,) = jax.linear_transpose(linear, ct)(ct)
        sawlog.log("out", out)
        return out

    def answer(ct):
        return ct * 3, {"out": once(ct * 3)}

    return fun, answer


@case("linear_transpose", "scan", args=(X3,))
def linear_transpose_in_scan() -> Program:
    """A transpose in a loop."""

    def fun(cts):
        def body(carry, ct):
            (out,) = jax.linear_transpose(lambda x: x * 3, ct)(ct)
            sawlog.log("out", out)
            return carry + out, None

        return lax.scan(body, jnp.float32(0), cts)[0]

    def answer(cts):
        return np.sum(cts * 3), {"out": many(list(cts * 3))}

    return fun, answer


@case("closure_convert", "grad", args=(ONE,))
def closure_convert() -> Program:
    """`jax.closure_convert` of a logging function hoists its constants, not its logs."""

    def fun(x):
        def shifted(y):
            sawlog.log("y", y)
            return y + x

        converted, constants = jax.closure_convert(shifted, ZERO)
        return converted(x * 2, *constants)

    def answer(x):
        return x * 3, {"y": once(x * 2)}

    return fun, answer
