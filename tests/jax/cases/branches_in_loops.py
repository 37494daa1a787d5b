"""Programs with branches in loops, and loops in branches."""

from __future__ import annotations

import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, X4, ZERO, Program, absent, case, f32, many, once
from .branches import FALSE, TRUE


@case("cond", "cond_in_scan", "steps", args=(X4,), vmap=False)
def cond_in_scan() -> Program:
    """A branch that sometimes logs: only the entries that ran, steps aligned."""

    def fun(xs):
        def body(i, x):
            def positive(v):
                sawlog.log({"positive": v}, step=i)
                return v

            return i + 1, lax.cond(x > 0, positive, lambda v: v * 0, x)

        return lax.scan(body, 0, xs)[1]

    def answer(xs):
        hits = [i for i in range(4) if xs[i] > 0]
        return np.maximum(xs, 0), {"positive": many([xs[i] for i in hits], step=hits)}

    return fun, answer


@case("cond", "cond_in_scan", "differing_keys", "steps", args=(X4,), vmap=False)
def cond_in_scan_two_keys() -> Program:
    """Each branch has its own key; a third is logged by both."""

    def fun(xs):
        def body(i, x):
            def up(v):
                sawlog.log({"up": v, "any": v * 10}, step=i)
                return v

            def down(v):
                sawlog.log({"down": -v, "any": v * 100}, step=i)
                return -v

            return i + 1, lax.cond(x > 0, up, down, x)

        return lax.scan(body, 0, xs)[1]

    def answer(xs):
        up = [i for i in range(4) if xs[i] > 0]
        down = [i for i in range(4) if not xs[i] > 0]
        both = [x * 10 if x > 0 else x * 100 for x in xs]
        logs = {
            "up": many([xs[i] for i in up], step=up),
            "down": many([-xs[i] for i in down], step=down),
            "any": many(both, step=range(4)),
        }
        return np.abs(xs), logs

    return fun, answer


@case("cond", "cond_in_scan", args=(X4,), vmap=False)
def cond_in_scan_never_taken() -> Program:
    """A branch that never runs in any iteration: no key."""

    def fun(xs):
        def body(carry, x):
            def never(v):
                sawlog.log({"never": v})
                return v

            return carry + lax.cond(x > 100, never, lambda v: v, x), None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        return np.sum(xs), {"never": absent(ZERO)}

    return fun, answer


@case("cond", "cond_in_scan", "several_sites", args=(X4,), vmap=False)
def cond_in_scan_beside_a_site() -> Program:
    """A sure site and an unsure one under one name in a body."""

    def fun(xs):
        def body(carry, x):
            sawlog.log("v", x)

            def big(v):
                sawlog.log("v", v * 100)
                return v

            return carry + lax.cond(x > 1, big, lambda v: v, x), None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        seen = []
        for x in xs:
            seen.append(x)
            if x > 1:
                seen.append(x * 100)
        return np.sum(xs), {"v": many(seen)}

    return fun, answer


@case("cond", "scan_in_cond", args=(TRUE, X3), vmap=False)
def scan_in_cond() -> Program:
    """A loop in a branch that runs."""

    def fun(flag, xs):
        def loop(v):
            def body(carry, x):
                carry = carry + x
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, jnp.float32(0), v)[0]

        return lax.cond(flag, loop, lambda v: v[0], xs)

    def answer(flag, xs):
        return np.sum(xs), {"carry": many(list(np.cumsum(xs)))}

    return fun, answer


@case("cond", "scan_in_cond", args=(FALSE, X3), vmap=False)
def scan_in_cond_not_taken() -> Program:
    """A loop in a branch that does not run; the other logs the name once: an axis of one."""

    def fun(flag, xs):
        def loop(v):
            def body(carry, x):
                sawlog.log("carry", x)
                return carry + x, None

            return lax.scan(body, jnp.float32(0), v)[0]

        def single(v):
            sawlog.log("carry", v[0])
            return v[0]

        return lax.cond(flag, loop, single, xs)

    def answer(flag, xs):
        return xs[0], {"carry": many([xs[0]])}

    return fun, answer


@case(
    "switch",
    "cond_in_scan",
    "differing_keys",
    args=(np.array([2, 0, 1, 0], np.int32),),
    vmap=False,
    grad=False,
)
def switch_in_scan() -> Program:
    """A switch by the loop's input."""

    def fun(indices):
        def branch(number):
            def run(v):
                sawlog.log({f"branch{number}": v * (number + 1)})
                return v + number

            return run

        def body(carry, index):
            return lax.switch(index, [branch(0), branch(1), branch(2)], carry), None

        return lax.scan(body, jnp.float32(1), indices)[0]

    def answer(indices):
        carry, seen = f32(1.0), {f"branch{n}": [] for n in range(3)}
        for n in (int(index) for index in indices):
            seen[f"branch{n}"].append(carry * np.float32(n + 1))
            carry = carry + np.float32(n)
        return carry, {key: many(values) for key, values in seen.items()}

    return fun, answer


@case(
    "cond",
    "cond_in_scan",
    "nested_loops",
    "steps",
    args=(np.array([[1, -2], [-3, 4]], "f4"),),
    vmap=False,
)
def cond_in_nested_scans() -> Program:
    """A branch in the inner of two loops."""

    def fun(m):
        def inner(i, x):
            def yes(v):
                sawlog.log({"positive": v}, step=i)
                return v

            return i + 1, lax.cond(x > 0, yes, lambda v: -v, x)

        def outer(i, row):
            return lax.scan(inner, i, row)

        return lax.scan(outer, 0, m)[1]

    def answer(m):
        flat = m.ravel()
        hits = [i for i in range(4) if flat[i] > 0]
        return np.abs(m), {"positive": many([flat[i] for i in hits], step=hits)}

    return fun, answer


@case("cond", "scan_in_cond", "cond_in_scan", args=(X4,), vmap=False)
def cond_in_scan_in_cond() -> Program:
    """A branch in a loop in a branch."""

    def fun(xs):
        def loop(v):
            def body(carry, x):
                def yes(w):
                    sawlog.log("hit", w)
                    return w

                return carry + lax.cond(x > 1, yes, lambda w: w, x), None

            return lax.scan(body, jnp.float32(0), v)[0]

        return lax.cond(xs[0] > 0, loop, lambda v: v[0], xs)

    def answer(xs):
        return np.sum(xs), {"hit": many([x for x in xs if x > 1])}

    return fun, answer


@case("platform_dependent", args=(X3,), vmap=False, grad=False)
def platform_dependent() -> Program:
    """Only the branch of the platform that runs."""

    def fun(x):
        def on_cpu(v):
            sawlog.log("cpu", v)
            return v * 2

        return lax.platform_dependent(x, cpu=on_cpu, default=lambda v: v * 3)

    def answer(x):
        return x * 2, {"cpu": once(x)}

    return fun, answer


@case("select", args=(X4,))
def where_is_no_branch() -> Program:
    """`jnp.where` and `lax.select` compute both sides: both logs are there."""

    def fun(x):
        a, b = x * 2, x - 1
        sawlog.log({"a": a, "b": b})
        return jnp.where(x > 0, a, b)

    def answer(x):
        a, b = x * 2, x - 1
        return np.where(x > 0, a, b), {"a": once(a), "b": once(b)}

    return fun, answer


@case("cond", args=(ONE,), vmap=False)
def two_conds_share_branches() -> Program:
    """One pair of branches in two conds: two entries."""

    def fun(x):
        def yes(v):
            sawlog.log("v", v)
            return v * 2

        def no(v):
            sawlog.log("v", -v)
            return v + 1

        y = lax.cond(x > 1, yes, no, x)
        return lax.cond(y > 100, yes, no, y)

    def answer(x):
        return x * 2 + 1, {"v": many([x, -(x * 2)])}

    return fun, answer
