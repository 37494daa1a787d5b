"""Programs with `vmap` and its cousins."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, Program, case, many, once


@case("vmap", args=(X3,))
def vmap_one_shot() -> Program:
    """A single log under vmap: [batch]."""

    def fun(xs):
        def lane(x):
            sawlog.log("x", x * 2)
            return x + 1

        return jax.vmap(lane)(xs)

    def answer(xs):
        return xs + 1, {"x": once(xs * 2)}

    return fun, answer


@case("vmap", "steps", "several_sites", args=(M23,))
def vmap_two_sites() -> Program:
    """Two sites under vmap: [entries, batch, ...], and steps [entries, batch]."""

    def fun(m):
        def lane(row):
            sawlog.log({"row": row}, step=0)
            sawlog.log({"row": row * 2}, step=row[0].astype(jnp.int32))
            return row.sum()

        return jax.vmap(lane)(m)

    def answer(m):
        steps = [np.zeros(2, np.int32), m[:, 0].astype(np.int32)]
        return np.sum(m, axis=1), {"row": many([m, m * 2], step=steps)}

    return fun, answer


@case("vmap", "in_axes", args=(M23, X3))
def vmap_in_axes() -> Program:
    """The mapped axis is the second of one argument; the other is not mapped."""

    def fun(m, v):
        def lane(column, v):
            sawlog.log({"column": column, "v": v})
            return column.sum() + v[0]

        return jax.vmap(lane, in_axes=(1, None))(m, v)

    def answer(m, v):
        logs = {"column": once(m.T), "v": once(np.stack([v] * 3))}
        return np.sum(m, axis=0) + v[0], logs

    return fun, answer


@case("vmap", "out_axes", args=(M23,))
def vmap_out_axes() -> Program:
    """The axis of the output does not matter for the logs."""

    def fun(m):
        def lane(row):
            sawlog.log("row", row + 1)
            return row * 2

        return jax.vmap(lane, out_axes=1)(m)

    def answer(m):
        return (m * 2).T, {"row": once(m + 1)}

    return fun, answer


@case("vmap", "nested_vmap", args=(M23,))
def vmap_nested() -> Program:
    """Two maps: the outer axis first."""

    def fun(m):
        def element(x):
            sawlog.log({"x": x * 10})
            return x + 1

        return jax.vmap(jax.vmap(element))(m)

    def answer(m):
        return m + 1, {"x": once(m * 10)}

    return fun, answer


@case("vmap", "nested_vmap", args=(X3, np.array([10.0, 20.0], np.float32)))
def vmap_nested_over_two_arguments() -> Program:
    """Each map over its own argument; values of one are broadcast along the other."""

    def fun(xs, ys):
        def element(x, y):
            sawlog.log({"x": x, "y": y, "xy": x * y})
            return x + y

        return jax.vmap(lambda x: jax.vmap(lambda y: element(x, y))(ys))(xs)

    def answer(xs, ys):
        x, y = np.broadcast_arrays(xs[:, None], ys[None, :])
        return x + y, {"x": once(x), "y": once(y), "xy": once(x * y)}

    return fun, answer


@case("vmap", "unbatched", "steps", args=(X3, ONE))
def vmap_unbatched_values() -> Program:
    """Values and steps that do not depend on the mapped argument are broadcast."""

    def fun(xs, scale):
        def lane(x):
            sawlog.log({"scale": scale, "constant": 7}, step=4)
            return x * scale

        return jax.vmap(lane)(xs)

    def answer(xs, scale):
        steps = np.full(3, 4, np.int32)
        logs = {
            "scale": once(np.full(3, scale), step=steps),
            "constant": once(np.full(3, 7, np.int32), step=steps),
        }
        return xs * scale, logs

    return fun, answer


@case("vmap", "dtypes", args=(np.array([1, 2, 3], np.int32),), grad=False)
def vmap_int_values() -> Program:
    """Integers and truth values under vmap."""

    def fun(ns):
        def lane(n):
            sawlog.log({"n": n, "odd": n % 2 == 1})
            return n * n

        return jax.vmap(lane)(ns)

    def answer(ns):
        return ns * ns, {"n": once(ns), "odd": once(ns % 2 == 1)}

    return fun, answer


@case("vmap", "pytree_value", args=(M23,))
def vmap_pytree_value() -> Program:
    """A pytree value under vmap."""

    def fun(m):
        def lane(row):
            sawlog.log({"tree": {"row": row, "max": row.max()}})
            return row

        return jax.vmap(lane)(m)

    def answer(m):
        return m, {"tree": once({"row": m, "max": np.max(m, axis=1)})}

    return fun, answer


@case("vmap", "scan", "steps", args=(M23,))
def vmap_of_scan() -> Program:
    """A loop under vmap: [entries, batch]."""

    def fun(m):
        def lane(row):
            def body(carry, item):
                i, x = item
                carry = carry + x
                sawlog.log({"carry": carry}, step=i)
                return carry, None

            return lax.scan(body, jnp.float32(0), (jnp.arange(3), row))[0]

        return jax.vmap(lane)(m)

    def answer(m):
        seen = list(np.cumsum(m, axis=1).T)
        steps = [np.full(2, i, np.int32) for i in range(3)]
        return seen[-1], {"carry": many(seen, step=steps)}

    return fun, answer


@case("vmap", "scan", args=(M23,))
def scan_of_vmap() -> Program:
    """vmap in a loop: [entries, batch]."""

    def fun(m):
        def lane(carry, x):
            sawlog.log("x", x * 2)
            return carry + x

        def body(carry, row):
            return jax.vmap(lane)(carry, row), None

        return lax.scan(body, jnp.zeros(3), m)[0]

    def answer(m):
        return np.sum(m, axis=0), {"x": many([row * 2 for row in m])}

    return fun, answer


@case("vmap", "jit", args=(X3,))
def vmap_of_jit() -> Program:
    """A jitted helper under vmap, called twice."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(xs):
        return jax.vmap(lambda x: helper(helper(x)))(xs)

    def answer(xs):
        return xs * 4, {"x": many([xs, xs * 2])}

    return fun, answer


@case("vmap", "jit", args=(X3,))
def jit_of_vmap() -> Program:
    """vmap in a jitted helper, beside an unmapped site of the same shape."""

    def lane(x):
        sawlog.log("x", x)
        return x * 2

    @jax.jit
    def helper(xs):
        return jax.vmap(lane)(xs)

    def fun(xs):
        out = helper(xs)
        sawlog.log("out", out)
        return out

    def answer(xs):
        return xs * 2, {"x": once(xs), "out": once(xs * 2)}

    return fun, answer


@case("vmap", "two_maps_one_function", args=(X3,))
def vmap_twice_one_function() -> Program:
    """One function under two maps of one size."""

    def lane(x):
        sawlog.log("x", x)
        return x * 2

    def fun(xs):
        return jax.vmap(lane)(jax.vmap(lane)(xs))

    def answer(xs):
        return xs * 4, {"x": many([xs, xs * 2])}

    return fun, answer


@case("vmap", "axis_size_one", args=(ONE,))
def vmap_of_one_lane() -> Program:
    """A batch of one keeps its axis."""

    def fun(x):
        def lane(v):
            sawlog.log("v", v)
            return v * 2

        return jax.vmap(lane)(x[None])[0]

    def answer(x):
        return x * 2, {"v": once(x[None])}

    return fun, answer


@case("vectorize", args=(M23,))
def jnp_vectorize() -> Program:
    """`jnp.vectorize` is a vmap over the leading axes."""

    def fun(m):
        @functools.partial(jnp.vectorize, signature="(n)->()")
        def norm(row):
            sawlog.log("row", row)
            return (row * row).sum()

        return norm(m)

    def answer(m):
        return np.sum(m * m, axis=1), {"row": once(m)}

    return fun, answer


def double_with_logs() -> Any:
    """A function and its own rule for `vmap`, each with a log."""

    @jax.custom_batching.custom_vmap
    def double(x):
        sawlog.log("plain", x)
        return x * 2

    @double.def_vmap
    def _(axis_size, in_batched, xs):
        sawlog.log("rule", xs)
        return xs * 2, in_batched[0]

    return double


@case("custom_vmap", args=(X3,), vmap=False, grad=False)
def custom_vmap_without_vmap() -> Program:
    """Not mapped: the function's own log."""

    double = double_with_logs()

    def fun(x):
        return double(x)

    def answer(x):
        return x * 2, {"plain": once(x)}

    return fun, answer


@case("custom_vmap", "vmap", args=(X3,), vmap=False, grad=False)
def custom_vmap_under_vmap() -> Program:
    """Mapped: the log of the rule, which sees the whole batch."""

    double = double_with_logs()

    def fun(xs):
        return jax.vmap(double)(xs)

    def answer(xs):
        return xs * 2, {"rule": once(xs)}

    return fun, answer
