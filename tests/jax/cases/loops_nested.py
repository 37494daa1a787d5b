"""Programs with loops in loops, in `jit`, and beside other logs."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, ZERO, Program, case, many
from .loops import sum_and_log, sums


@case("scan", "before_and_after", "steps", args=(X3,))
def before_in_and_after_a_loop() -> Program:
    """One name before, in and after a loop: one concatenation."""

    def fun(xs):
        def body(carry, item):
            i, x = item
            carry = carry + x
            sawlog.log({"v": carry}, step=i)
            return carry, None

        sawlog.log({"v": xs[0]}, step=-1)
        total = lax.scan(body, jnp.float32(0), (jnp.arange(3), xs))[0]
        sawlog.log({"v": total * 10}, step=3)
        return total

    def answer(xs):
        seen = sums(ZERO, xs)
        logged = many([xs[0], *seen, seen[-1] * 10], step=[-1, 0, 1, 2, 3])
        return seen[-1], {"v": logged}

    return fun, answer


@case("scan", "nested_loops", args=(M23,))
def nested_scans() -> Program:
    """Two loops flatten into one entry axis."""

    def fun(m):
        def row(carry, xs):
            carry, _ = lax.scan(sum_and_log, carry, xs)
            return carry, None

        return lax.scan(row, jnp.float32(0), m)[0]

    def answer(m):
        seen = sums(ZERO, m.ravel())
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "nested_loops", "several_sites", "steps", args=(M23,))
def nested_scans_two_sites() -> Program:
    """Outer and inner sites under one name interleave in execution order."""

    def fun(m):
        def inner(carry, x):
            i, total = carry
            sawlog.log({"v": total + x}, step=i, episode=0)
            return (i + 1, total + x), None

        def outer(carry, xs):
            sawlog.log({"v": carry[1]}, step=carry[0], episode=1)
            return lax.scan(inner, carry, xs)[0], None

        return lax.scan(outer, (0, jnp.float32(0)), m)[0][1]

    def answer(m):
        i, total, seen, step, episode = 0, ZERO, [], [], []
        for row in m:
            seen.append(total)
            step.append(i)
            episode.append(1)
            for x in row:
                total = total + x
                seen.append(total)
                step.append(i)
                episode.append(0)
                i += 1
        return total, {"v": many(seen, step=step, episode=episode)}

    return fun, answer


@case("scan", "nested_loops", args=(np.arange(8, dtype=np.float32).reshape(2, 2, 2),))
def three_nested_scans() -> Program:
    """Three loops, a log at each level."""

    def fun(cube):
        def level(depth):
            def body(carry, xs):
                sawlog.log(f"level{depth}", carry)
                if depth == 2:
                    return carry + xs, None
                return lax.scan(level(depth + 1), carry, xs)[0], None

            return body

        return lax.scan(level(0), jnp.float32(0), cube)[0]

    def answer(cube):
        total = ZERO
        seen = {f"level{d}": [] for d in range(3)}
        for plane in cube:
            seen["level0"].append(total)
            for row in plane:
                seen["level1"].append(total)
                for x in row:
                    seen["level2"].append(total)
                    total = total + x
        return total, {key: many(values) for key, values in seen.items()}

    return fun, answer


@case("scan", "jit", args=(X3,))
def scan_with_jit_body() -> Program:
    """The body is a jitted function."""

    def fun(xs):
        return lax.scan(jax.jit(sum_and_log), jnp.float32(0), xs)[0]

    def answer(xs):
        seen = sums(ZERO, xs)
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "jit", args=(X3,))
def jit_around_scan() -> Program:
    """The loop is in a jitted helper that is called twice."""

    @jax.jit
    def total(start, xs):
        return lax.scan(sum_and_log, start, xs)[0]

    def fun(xs):
        return total(total(jnp.float32(0), xs), xs)

    def answer(xs):
        seen = sums(ZERO, [*xs, *xs])
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("fori_loop", args=(ONE,))
def fori_loop() -> Program:
    """A loop with static bounds."""

    def fun(x):
        def body(i, carry):
            carry = carry + i
            sawlog.log({"carry": carry}, step=i)
            return carry

        return lax.fori_loop(1, 4, body, x)

    def answer(x):
        seen = sums(x, [np.float32(i) for i in (1, 2, 3)])
        return seen[-1], {"carry": many(seen, step=[1, 2, 3])}

    return fun, answer


@case("fori_loop", "zero_length", args=(ONE,), vmap=False, grad=False)
def fori_loop_zero_length() -> Program:
    """Static bounds with nothing between them."""

    def fun(x):
        def body(i, carry):
            sawlog.log({"carry": carry}, step=i)
            return carry * 2

        return lax.fori_loop(3, 3, body, x)

    def answer(x):
        return x, {"carry": many([], like=ZERO, step=[])}

    return fun, answer


@case("fori_loop", "nested_loops", args=(X3,))
def fori_loop_in_scan() -> Program:
    """A fori_loop in a scan."""

    def fun(xs):
        def outer(carry, x):
            def inner(i, c):
                c = c + x * i
                sawlog.log({"c": c}, step=i)
                return c

            return lax.fori_loop(0, 2, inner, carry), None

        return lax.scan(outer, jnp.float32(0), xs)[0]

    def answer(xs):
        carry, seen = ZERO, []
        for x in xs:
            for i in range(2):
                carry = carry + x * np.float32(i)
                seen.append(carry)
        return carry, {"c": many(seen, step=[0, 1] * 3)}

    return fun, answer


@case("fori_loop", "nested_loops", "several_sites", args=(ONE,))
def loop_in_loop_with_two_sites() -> Program:
    """fori in fori with a site before and a site after the inner loop."""

    def fun(x):
        def inner(j, c):
            sawlog.log("c", c)
            return c + j

        def outer(i, c):
            sawlog.log("c", c * 100)
            c = lax.fori_loop(0, 2, inner, c)
            sawlog.log("c", -c)
            return c + i

        return lax.fori_loop(0, 3, outer, x)

    def answer(x):
        c, seen = x, []
        for i in range(3):
            seen.append(c * 100)
            for j in range(2):
                seen.append(c)
                c = c + np.float32(j)
            seen.append(-c)
            c = c + np.float32(i)
        return c, {"c": many(seen)}

    return fun, answer


@case("fori_loop", "unroll", args=(ONE,))
def fori_loop_unroll() -> Program:
    """fori_loop with unroll."""

    def fun(x):
        def body(i, carry):
            sawlog.log("carry", carry)
            return carry * 2

        return lax.fori_loop(0, 4, body, x, unroll=2)

    def answer(x):
        return x * 16, {"carry": many([x, x * 2, x * 4, x * 8])}

    return fun, answer
