"""Programs with derivatives inside: each forward log is seen exactly once."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .cases_base import M23, ONE, X3, X4, ZERO, Program, case, f32, many, once


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
