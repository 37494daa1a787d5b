"""Programs with `map`, `associative_scan`, and loops whose results or logs are constant."""

from __future__ import annotations

import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, X3, X4, X8, ZERO, Program, case, many, once
from .loops import sum_and_log, sums


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
