"""Programs with `scan`, `fori_loop`, `map` and `associative_scan`."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .cases_base import M23, ONE, X3, X4, X8, ZERO, Program, case, many, once


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

    def answer(xs):
        seen = sums(ZERO, xs)
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "unroll", args=(X3,))
def scan_unroll_uneven() -> Program:
    """An unroll that does not divide the length."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs, unroll=2)[0]

    def answer(xs):
        seen = sums(ZERO, xs)
        return seen[-1], {"sum": many(seen)}

    return fun, answer


@case("scan", "unroll", args=(X3,))
def scan_unroll_fully() -> Program:
    """`unroll=True` leaves no loop when compiled."""

    def fun(xs):
        return lax.scan(sum_and_log, jnp.float32(0), xs, unroll=True)[0]

    def answer(xs):
        seen = sums(ZERO, xs)
        return seen[-1], {"sum": many(seen)}

    return fun, answer


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


@case("lax_map", args=(M23,))
def lax_map() -> Program:
    """lax.map is a loop: one entry an element."""

    def fun(m):
        def row(xs):
            sawlog.log("mean", xs.mean())
            return xs * 2

        return lax.map(row, m)

    def answer(m):
        return m * 2, {"mean": many([np.mean(row) for row in m])}

    return fun, answer


@case("lax_map", "batch_size", args=(X4,))
def lax_map_batch_size() -> Program:
    """lax.map in batches is a loop over a vmap: [entries, batch]."""

    def fun(xs):
        def element(x):
            sawlog.log("x", x * 10)
            return x + 1

        return lax.map(element, xs, batch_size=2)

    def answer(xs):
        return xs + 1, {"x": many([xs[:2] * 10, xs[2:] * 10])}

    return fun, answer


@case("lax_map", "batch_size", args=(X8,), ways=("plain", "spool", "jit_spool", "grad"))
def lax_map_batch_size_with_a_rest() -> Program:
    """What is left over has fewer lanes: the others logged nothing there."""

    def fun(xs):
        def element(x):
            sawlog.log("x", x * 10, step=x)
            return x + 1

        return lax.map(element, xs, batch_size=3)

    def answer(xs):
        padded = np.concatenate([xs, [ZERO]]).reshape(3, 3)
        mask = (np.arange(9) < 8).reshape(3, 3)
        return xs + 1, {"x": many(list(padded * 10), mask=list(mask), step=list(padded))}

    return fun, answer


@case("associative_scan", args=(X4,))
def associative_scan_result() -> Program:
    """A log of the result."""

    def fun(xs):
        out = lax.associative_scan(jnp.add, xs)
        sawlog.log("prefix_sums", out)
        return out[-1]

    def answer(xs):
        out = np.cumsum(xs)
        return out[-1], {"prefix_sums": once(out)}

    return fun, answer


@case("associative_scan", args=(X3,))
def associative_scan_combine() -> Program:
    """A log in the combining function; with three elements both combinations have one pair."""

    def fun(xs):
        def combine(a, b):
            sawlog.log({"left": a, "right": b})
            return a + b

        return lax.associative_scan(combine, xs)

    def answer(xs):
        pair = xs[0:1] + xs[1:2]
        logs = {"left": many([xs[0:1], pair]), "right": many([xs[1:2], xs[2:3]])}
        return np.cumsum(xs), logs

    return fun, answer


@case("associative_scan", "reverse", args=(X3,))
def associative_scan_reverse() -> Program:
    """The same from the other end."""

    def fun(xs):
        def combine(a, b):
            sawlog.log("left", a)
            return a + b

        return lax.associative_scan(combine, xs, reverse=True)

    def answer(xs):
        back = xs[::-1]
        logs = {"left": many([back[0:1], back[0:1] + back[1:2]])}
        return np.cumsum(back)[::-1], logs

    return fun, answer


@case("scan", "unused_result", args=(X3,))
def scan_result_unused() -> Program:
    """A loop whose result nobody uses still logs."""

    def fun(xs):
        lax.scan(sum_and_log, jnp.float32(0), xs)
        return xs

    def answer(xs):
        return xs, {"sum": many(sums(ZERO, xs))}

    return fun, answer


@case("scan", "python_scalars", args=(X3,))
def scan_logs_constant() -> Program:
    """A Python number logged in a loop counts once an iteration."""

    def fun(xs):
        def body(carry, x):
            sawlog.log({"one": 1, "half": 0.5})
            return carry + x, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        logs = {"one": many([np.int32(1)] * 3), "half": many([np.float32(0.5)] * 3)}
        return np.sum(xs), logs

    return fun, answer


@case("scan", "while_without_log", args=(X3,), grad=False)
def while_loop_without_log() -> Program:
    """A while_loop is no problem as long as the log is not in it."""

    def fun(xs):
        def body(carry, x):
            doubled = lax.while_loop(lambda v: v < 8, lambda v: v * 2, x)
            sawlog.log("doubled", doubled)
            return carry + doubled, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        seen = []
        for x in xs:
            while x < 8:
                x = x * 2
            seen.append(x)
        return np.sum(np.stack(seen)), {"doubled": many(seen)}

    return fun, answer
