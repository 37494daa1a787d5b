"""Programs with `jax.checkpoint`: once, though the forward pass runs twice."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import sawlog

from .base import M23, ONE, X3, Program, case, many, once


def remat_program(**options) -> Program:
    """A checkpointed function under grad, and what it logs."""

    @functools.partial(jax.checkpoint, **options)
    def block(x):
        y = jnp.sin(x)
        sawlog.log("y", y)
        return jnp.sin(y * 2)

    def fun(x):
        return jax.grad(lambda v: block(v).sum())(x)

    def answer(x):
        y = np.sin(x)
        return np.cos(y * 2) * 2 * np.cos(x), {"y": once(y)}

    return fun, answer


@case("checkpoint", "grad", args=(X3,), rtol=1e-5)
def checkpoint() -> Program:
    """Exactly once, though the forward pass runs twice."""
    return remat_program()


@case("checkpoint", "policy", "grad", args=(X3,), rtol=1e-5)
def checkpoint_nothing_saveable() -> Program:
    """A policy that saves nothing."""
    return remat_program(policy=jax.checkpoint_policies.nothing_saveable)


@case("checkpoint", "policy", "grad", args=(X3,), rtol=1e-5)
def checkpoint_everything_saveable() -> Program:
    """A policy that saves everything."""
    return remat_program(policy=jax.checkpoint_policies.everything_saveable, prevent_cse=False)


@case("checkpoint", "policy", "grad", args=(np.eye(3, dtype=np.float32), X3))
def checkpoint_dots_saveable() -> Program:
    """A policy that saves matrix products; logs before and after the product."""

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def block(w, x):
        sawlog.log("h", x * 2)
        h = w @ (x * 2)
        sawlog.log("h", h)
        return h * h

    def fun(w, x):
        return jax.grad(lambda v: block(w, v).sum())(x)

    def answer(w, x):
        h = w @ (x * 2)
        return 2 * (w.T @ (2 * h)), {"h": many([x * 2, h])}

    return fun, answer


@case("checkpoint", "policy", "grad", args=(X3,))
def checkpoint_named_policy() -> Program:
    """A policy by name, with the named value logged."""
    policy = jax.checkpoint_policies.save_only_these_names("kept")

    @functools.partial(jax.checkpoint, policy=policy)
    def block(x):
        y = checkpoint_name(x * x, "kept")
        sawlog.log({"y": y, "z": y * x})
        return y * x

    def fun(x):
        return jax.grad(lambda v: block(v).sum())(x)

    def answer(x):
        return 3 * x * x, {"y": once(x * x), "z": once(x * x * x)}

    return fun, answer


@case("checkpoint", "grad", "scan", args=(X3,))
def checkpoint_around_scan() -> Program:
    """A loop in a checkpointed function."""

    @jax.checkpoint
    def block(xs):
        def body(carry, x):
            carry = carry + x * x
            sawlog.log("carry", carry)
            return carry, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def fun(xs):
        return jax.grad(block)(xs)

    def answer(xs):
        return 2 * xs, {"carry": many(list(np.cumsum(xs * xs)))}

    return fun, answer


@case("checkpoint", "grad", "scan", "loop_invariant", args=(X3, ONE))
def checkpoint_in_scan_body() -> Program:
    """A checkpointed body, with an invariant value logged too."""

    def fun(xs, w):
        def loss(w):
            @jax.checkpoint
            def body(carry, x):
                carry = carry + w * w * x
                sawlog.log({"carry": carry, "w": w})
                return carry, None

            return lax.scan(body, jnp.float32(0), xs)[0]

        return jax.grad(loss)(w)

    def answer(xs, w):
        logs = {"carry": many(list(np.cumsum(w * w * xs))), "w": many([w] * 3)}
        return 2 * w * np.sum(xs), logs

    return fun, answer


@case("checkpoint", "grad", "jit", args=(X3,))
def checkpoint_nested_with_jit() -> Program:
    """checkpoint of jit of checkpoint, a log at each level."""

    @jax.checkpoint
    def inner(x):
        sawlog.log("inner", x)
        return x * x

    @jax.checkpoint
    @jax.jit
    def outer(x):
        sawlog.log("outer", x)
        return inner(x * 2)

    def fun(x):
        return jax.grad(lambda v: outer(v).sum())(x)

    def answer(x):
        return 8 * x, {"outer": once(x), "inner": once(x * 2)}

    return fun, answer


@case("checkpoint", "vmap", "grad", args=(M23,))
def vmap_of_grad_of_checkpoint() -> Program:
    """Per-example gradients of a checkpointed function."""

    @jax.checkpoint
    def cubes(row):
        y = row * row * row
        sawlog.log("cubes", y)
        return y.sum()

    def fun(m):
        return jax.vmap(jax.grad(cubes))(m)

    def answer(m):
        return 3 * m * m, {"cubes": once(m * m * m)}

    return fun, answer


@case("checkpoint", args=(X3,))
def checkpoint_without_grad() -> Program:
    """Not differentiated: once."""

    @jax.checkpoint
    def block(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        return block(block(x))

    def answer(x):
        return x * 4, {"x": many([x, x * 2])}

    return fun, answer
