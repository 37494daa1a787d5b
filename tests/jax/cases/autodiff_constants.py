"""Differentiated programs that log what does not depend on what they are differentiated by.

JAX evaluates an equation without unknown operands where it can, also one that has no operands at
all, and differentiates none without tangents. The logs inside stay where they are.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, Program, case, many, once


def log_constant(carry):
    """A call without operands: the constant is inside."""
    jax.jit(lambda: sawlog.log({"constant": 3.0}))()
    return carry


def log_indices(carry):
    """A loop that nothing goes into: its counter is made inside the call."""

    def body(carry, i):
        sawlog.log({"i": i}, step=i)
        return carry, None

    return jax.jit(lambda: lax.scan(body, (), jnp.arange(2))[0])() or carry


def log_in_loop(carry):
    """A loop whose carry is not used, without any operand."""

    def body(carry, _):
        sawlog.log({"constant": 3.0})
        return carry, None

    return lax.scan(body, (), None, length=2)[0] or carry


def log_in_branch(carry):
    """A branch whose operands are all constant."""
    lax.cond(True, lambda: sawlog.log({"constant": 3.0}), lambda: None)
    return carry


def repeated(body, length=2):
    """A loop around a body that logs and does not change the carry."""
    return lambda x: lax.scan(lambda c, _: (2 * body(c), None), x, None, length=length)[0]


@case("grad", "scan", "no_operands", args=(ONE,))
def grad_of_a_call_without_operands_in_scan() -> Program:
    """Once an iteration, not once."""

    def answer(x):
        return np.float32(4), {"constant": many([np.float32(3)] * 2)}

    return jax.grad(repeated(log_constant)), answer


@case("grad", "scan", "no_operands", args=(ONE,))
def grad_of_a_call_with_a_loop_without_operands_in_scan() -> Program:
    """The inner loop is not hoisted either."""

    def answer(x):
        i = [np.int32(0), np.int32(1)] * 3
        return np.float32(8), {"i": many(i, step=i)}

    return jax.grad(repeated(log_indices, 3)), answer


@case("grad", "scan", "no_operands", args=(ONE,))
def grad_of_loops_without_operands() -> Program:
    """A loop without operands directly inside another."""

    def answer(x):
        return np.float32(8), {"constant": many([np.float32(3)] * 6)}

    return jax.grad(repeated(log_in_loop, 3)), answer


@case("grad", "scan", "no_operands", args=(ONE,))
def grad_of_no_iterations_of_a_call_without_operands() -> Program:
    """A loop that does not run at all: what was hoisted would run."""

    def answer(x):
        return np.float32(1), {"constant": many([], like=np.float32(3))}

    return jax.grad(repeated(log_constant, 0)), answer


#: XLA of JAX 0.12 aborts where an ordered callback is all that a loop has, inside of a ``jit`` and
#: beside another loop: also with ``jax.debug.callback(..., ordered=True)`` and without sawlog.
WITHOUT_CALLBACKS = ("spool", "jit_spool", "spool_jit", "vmap", "grad", "plain")


@case("grad", "scan", "checkpoint", "no_operands", args=(ONE,), ways=WITHOUT_CALLBACKS)
def checkpointed_grad_of_a_call_without_operands_in_scan() -> Program:
    """The same where a checkpoint splits the loop."""

    def answer(x):
        return np.float32(4), {"constant": many([np.float32(3)] * 2)}

    return jax.grad(jax.checkpoint(repeated(log_constant))), answer


@case("grad", "scan", "vmap", "no_operands", args=(X3,))
def lanes_of_grad_of_a_branch_without_operands() -> Program:
    """Each lane logs in each iteration."""

    def answer(xs):
        return np.full(3, 4, np.float32), {"constant": many([np.full(3, 3, np.float32)] * 2)}

    return jax.vmap(jax.grad(repeated(log_in_branch))), answer


@case("hvp", "scan", "no_operands", args=(ONE,))
def forward_over_reverse_without_operands() -> Program:
    """Two derivatives do not lose more."""

    def fun(x):
        square = lambda x: repeated(log_in_loop)(x) ** 2
        return jax.jvp(jax.grad(square), (x,), (jnp.ones_like(x),))[1]

    def answer(x):
        return np.float32(32), {"constant": many([np.float32(3)] * 4)}

    return fun, answer


def held(fun):
    """Something of a constant of the derivative: no operand has a tangent."""
    return lambda x: fun(lax.stop_gradient(x)) * x


def logged(x):
    """Log and return a value."""
    sawlog.log({"x": x})
    return x


@case("jacfwd", "jit", args=(X3,), grad=False)
def jacfwd_of_a_call_without_tangents() -> Program:
    """Once, without the axis of the tangents."""

    def answer(xs):
        return np.diag(xs), {"x": once(xs)}

    return jax.jacfwd(held(jax.jit(logged))), answer


@case("jacfwd", "checkpoint", args=(X3,), grad=False)
def jacfwd_of_a_checkpoint_without_tangents() -> Program:
    """The same for a checkpoint."""

    def answer(xs):
        return np.diag(xs), {"x": once(xs)}

    return jax.jacfwd(held(jax.checkpoint(logged))), answer


@case("jacfwd", "scan", args=(X3,), grad=False)
def jacfwd_of_a_loop_without_tangents() -> Program:
    """A loop over constants beside the derivative, and a call in it."""

    def fun(xs):
        def body(carry, x):
            jax.jit(logged)(x)
            return carry, None

        lax.scan(body, 0, lax.stop_gradient(xs))
        return xs * xs

    def answer(xs):
        return np.diag(2 * xs), {"x": many(list(xs))}

    return jax.jacfwd(fun), answer


@case("jacfwd", "hessian", "scan", args=(ONE,), grad=False)
def jacfwd_of_grad_of_an_unchanged_carry() -> Program:
    """Reverse mode leaves the loop to forward mode without a tangent."""

    def fun(x):
        def body(carry, i):
            sawlog.log({"i": i})
            return carry, None

        return lax.scan(body, x, jnp.arange(2))[0] ** 2

    def answer(x):
        return np.float32(2), {"i": many([np.int32(0), np.int32(1)])}

    return jax.jacfwd(jax.grad(fun)), answer


@case("jacfwd", "cond", args=(X3,), grad=False, vmap=False)
def jacfwd_of_a_branch_without_tangents() -> Program:
    """A branch that depends on constants of the derivative alone."""

    def fun(xs):
        fixed = lax.stop_gradient(xs)
        lax.cond(fixed[0] > 0, lambda x: logged(x)[0], lambda x: x[0], fixed)
        return 3 * xs

    def answer(xs):
        return 3 * np.eye(3, dtype=np.float32), {"x": once(xs)}

    return jax.jacfwd(fun), answer
