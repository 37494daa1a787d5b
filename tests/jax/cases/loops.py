"""Programs with `scan`."""

from __future__ import annotations

import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, X4, ZERO, Program, case, many


def sum_and_log(carry, x):
    """A loop body: the running sum is logged."""
    carry = carry + x
    sawlog.log("sum", carry)
    return carry, carry * 2


def sums(start, xs) -> list:
    """What `sum_and_log` logs, by hand."""
    seen = []
    for x in xs:
        start = start + x
        seen.append(start)
    return seen


def summed(xs) -> tuple:
    """The answer of a loop over `sum_and_log`."""
    seen = sums(ZERO, xs)
    return seen[-1], {"sum": many(seen)}


@case("scan", args=(X4,))
def scan() -> Program:
    """One entry an iteration."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs)

    def answer(xs):
        seen = sums(ZERO, xs)
        return (seen[-1], np.stack(seen) * 2), {"sum": many(seen)}

    return fun, answer


@case("scan", args=(M23,))
def scan_over_rows() -> Program:
    """Array values: [entries, ...]."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.zeros(3), xs)[0]

    def answer(xs):
        seen = sums(np.zeros(3, np.float32), xs)
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "steps", args=(X3,), order=("a", "b") * 3)
def scan_two_names() -> Program:
    """Two names an iteration, in turn."""

    def fun(xs):
        def body(i, x):
            sawlog.log({"a": x}, step=i)
            sawlog.log({"b": x * x}, step=i)
            return i + 1, None

        lax.scan(body, 0, xs)
        return xs

    def answer(xs):
        logs = {"a": many(list(xs), step=range(3)), "b": many(list(xs * xs), step=range(3))}
        return xs, logs

    return fun, answer


@case("scan", "several_sites", args=(X3,))
def scan_two_sites_one_name() -> Program:
    """Two sites under one name in a body alternate in execution order."""

    def fun(xs):
        def body(carry, x):
            sawlog.log("v", x)
            carry = carry + x
            sawlog.log("v", carry)
            return carry, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        total, seen = ZERO, []
        for x in xs:
            total = total + x
            seen += [x, total]
        return total, {"v": many(seen)}

    return fun, answer


@case("scan", "pytree_args", args=({"x": X3, "y": {"z": M23.T}},))
def scan_over_pytrees() -> Program:
    """The inputs and the carry are pytrees."""

    def fun(tree):
        def body(carry, item):
            carry = {"n": carry["n"] + 1, "s": carry["s"] + item["y"]["z"]}
            sawlog.log({"s": carry["s"], "x": item["x"]}, step=carry["n"])
            return carry, item["x"] * 2

        return lax.scan(body, {"n": 0, "s": jnp.zeros(2)}, tree)

    def answer(tree):
        total, seen = np.zeros(2, np.float32), []
        for row in tree["y"]["z"]:
            total = total + row
            seen.append(total)
        out = ({"n": np.int32(3), "s": total}, tree["x"] * 2)
        steps = [1, 2, 3]
        return out, {"s": many(seen, step=steps), "x": many(list(tree["x"]), step=steps)}

    return fun, answer


@case("scan", args=(ONE,))
def scan_without_inputs() -> Program:
    """`xs=None` with a length."""

    def fun(x):
        def body(carry, _):
            sawlog.log("carry", carry)
            return carry * 2, None

        return lax.scan(body, x, None, length=3)[0]

    def answer(x):
        return x * 8, {"carry": many([x, x * 2, x * 4])}

    return fun, answer


@case("scan", args=(X3,))
def scan_closure() -> Program:
    """The body closes over a value of the function: it is broadcast to each iteration."""

    def fun(xs):
        top = xs.max()

        def body(carry, x):
            sawlog.log({"top": top, "gap": top - x})
            return carry, x / top

        return lax.scan(body, 0, xs)[1]

    def answer(xs):
        top = np.max(xs)
        return xs / top, {"top": many([top] * 3), "gap": many([top - x for x in xs])}

    return fun, answer


@case("scan", "reverse", args=(X4,))
def scan_reverse() -> Program:
    """Execution order: the last index first, steps aligned."""

    def fun(xs):
        def body(carry, item):
            i, x = item
            carry = carry * 0.5 + x
            sawlog.log({"carry": carry}, step=i)
            return carry, carry

        return lax.scan(body, jnp.float32(0), (jnp.arange(4), xs), reverse=True)[1]

    def answer(xs):
        carry, seen = ZERO, []
        for x in xs[::-1]:
            carry = carry * np.float32(0.5) + x
            seen.append(carry)
        return np.stack(seen[::-1]), {"carry": many(seen, step=[3, 2, 1, 0])}

    return fun, answer


@case("scan", "reverse", "nested_loops", args=(M23,))
def scan_reverse_around_forward() -> Program:
    """A forward loop in a reverse one: each row forward, the rows backward."""

    def fun(m):
        def row(carry, xs):
            return lax.scan(sum_and_log, carry, xs)[0], None

        return lax.scan(row, jnp.float32(0), m, reverse=True)[0]

    def answer(m):
        seen = sums(ZERO, [*m[1], *m[0]])
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "unroll", args=(X4,))
def scan_unroll() -> Program:
    """A partly unrolled loop logs the same."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs, unroll=2)[0]

    return fun, summed


@case("scan", "unroll", args=(X3,))
def scan_unroll_uneven() -> Program:
    """An unroll that does not divide the length."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs, unroll=2)[0]

    return fun, summed


@case("scan", "unroll", args=(X3,))
def scan_unroll_fully() -> Program:
    """`unroll=True` leaves no loop when compiled."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs, unroll=True)[0]

    return fun, summed


@case("scan", "zero_length", args=(ONE,))
def scan_zero_length() -> Program:
    """A loop of length 0: the key is there, with no entries."""

    def fun(x):
        return lax.scan(sum_and_log, x, jnp.zeros((0,)))[0]

    def answer(x):
        return x, {"sum": many([], like=ZERO)}

    return fun, answer


@case("scan", "zero_length", "steps", args=(X3,))
def scan_zero_length_beside_a_site() -> Program:
    """No entries from the loop, one from beside it: still an entry axis."""

    def fun(x):
        def body(i, row):
            sawlog.log({"row": row}, step=i)
            return i + 1, None

        lax.scan(body, 0, jnp.zeros((0, 3)))
        sawlog.log({"row": x}, step=9)
        return x

    def answer(x):
        return x, {"row": many([x], step=[9])}

    return fun, answer


@case("scan", "one_length", args=(ONE,))
def scan_one_length() -> Program:
    """A loop of length 1 keeps the entry axis."""

    def fun(x):
        return lax.scan(sum_and_log, x, jnp.ones((1,)))[0]

    def answer(x):
        return x + 1, {"sum": many([x + 1])}

    return fun, answer


@case("scan", "shared_jaxpr", args=(X3, X4))
def one_body_in_two_scans() -> Program:
    """One body object in two loops: concatenated."""

    def fun(xs, ys):
        first = lax.scan(sum_and_log, jnp.float32(0), xs)[0]
        return lax.scan(sum_and_log, first, ys)[0]

    def answer(xs, ys):
        seen = sums(ZERO, [*xs, *ys])
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "shared_jaxpr", args=(X3,))
def same_scan_twice() -> Program:
    """The same loop with the same shapes, twice: one cached jaxpr."""

    def fun(xs):
        first = lax.scan(sum_and_log, jnp.float32(0), xs)[0]
        return lax.scan(sum_and_log, first, xs)[0]

    def answer(xs):
        seen = sums(ZERO, [*xs, *xs])
        return seen[-1], {"sum": many(seen)}

    return fun, answer
