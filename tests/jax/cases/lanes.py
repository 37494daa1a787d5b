"""Branches under `vmap`: only the lanes that ran count as logged."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import M23, X4, ZERO, Program, absent, case, many, once


@case("vmap_of_cond", "vmap", args=(X4,), vmap=False)
def vmap_of_cond_batched_predicate() -> Program:
    """Only the lanes that took the branch count as logged."""

    def fun(xs):
        def lane(x):
            def yes(v):
                sawlog.log({"positive": v * 10}, step=1)
                return v

            def no(v):
                sawlog.log({"negative": v * 100}, step=2)
                return -v

            return lax.cond(x > 0, yes, no, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        up = xs > 0
        logs = {
            "positive": once(xs * 10, mask=up, step=np.full(4, 1, np.int32)),
            "negative": once(xs * 100, mask=~up, step=np.full(4, 2, np.int32)),
        }
        return np.abs(xs), logs

    return fun, answer


@case("vmap_of_cond", "vmap", args=(X4,), vmap=False, tap=False)
def vmap_of_cond_same_key() -> Program:
    """Both branches log the key once: every lane logged once, whichever branch it took."""

    def fun(xs):
        def lane(x):
            def yes(v):
                sawlog.log("v", v * 10)
                return v

            def no(v):
                sawlog.log("v", v * 100)
                return -v

            return lax.cond(x > 0, yes, no, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        return np.abs(xs), {"v": once(np.where(xs > 0, xs * 10, xs * 100))}

    return fun, answer


@case("vmap_of_cond", "vmap", args=(X4,), vmap=False)
def vmap_of_cond_no_lane_taken() -> Program:
    """No lane took the branch: the key is absent."""

    def fun(xs):
        def lane(x):
            def never(v):
                sawlog.log("never", v)
                return v

            return lax.cond(x > 100, never, lambda v: -v, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        return -xs, {"never": absent(xs)}

    return fun, answer


@case("vmap_of_cond", "vmap", args=(np.bool_(True), X4), vmap=False)
def vmap_of_cond_unbatched_predicate() -> Program:
    """A predicate that is the same for all lanes stays a branch."""

    def fun(flag, xs):
        def lane(x):
            def yes(v):
                sawlog.log("yes", v)
                return v

            def no(v):
                sawlog.log("no", v)
                return -v

            return lax.cond(flag, yes, no, x)

        return jax.vmap(lane)(xs)

    def answer(flag, xs):
        return xs, {"yes": once(xs), "no": absent(xs)}

    return fun, answer


@case("vmap_of_cond", "switch", "vmap", args=(np.array([0, 2, 1, 0], np.int32), X4), vmap=False)
def vmap_of_switch() -> Program:
    """A switch by lane."""

    def fun(indices, xs):
        def branch(n):
            def run(v):
                sawlog.log(f"branch{n}", v + n)
                return v * n

            return run

        def lane(index, x):
            return lax.switch(index, [branch(0), branch(1), branch(2)], x)

        return jax.vmap(lane)(indices, xs)

    def answer(indices, xs):
        logs = {f"branch{n}": once(xs + np.float32(n), mask=indices == n) for n in range(3)}
        return xs * indices.astype(np.float32), logs

    return fun, answer


@case("cond_in_scan", "vmap", "steps", args=(M23,), vmap=False)
def cond_in_scan_in_vmap_unbatched() -> Program:
    """A branch by the loop's index, under vmap: all lanes alike, only entries that ran."""

    def fun(m):
        def lane(row):
            def body(carry, item):
                i, x = item

                def even(v):
                    sawlog.log({"even": v}, step=i)
                    return v

                return carry + lax.cond(i % 2 == 0, even, lambda v: v * 0, x), None

            return lax.scan(body, jnp.float32(0), (jnp.arange(3), row))[0]

        return jax.vmap(lane)(m)

    def answer(m):
        steps = [np.full(2, i, np.int32) for i in (0, 2)]
        return m[:, 0] + m[:, 2], {"even": many([m[:, 0], m[:, 2]], step=steps)}

    return fun, answer


@case(
    "cond_in_scan",
    "vmap_of_cond",
    "vmap",
    args=(np.array([[3, -1, -2], [1, -4, 5]], "f4"),),
    vmap=False,
)
def cond_in_scan_in_vmap_batched() -> Program:
    """A branch by lane and iteration: the lanes that ran, without the entries that none ran."""

    def fun(m):
        def lane(row):
            def body(carry, x):
                def yes(v):
                    sawlog.log("positive", v)
                    return v

                return carry + lax.cond(x > 0, yes, lambda v: v * 0, x), None

            return lax.scan(body, jnp.float32(0), row)[0]

        return jax.vmap(lane)(m)

    def answer(m):
        columns = [0, 2]
        positive = many([m[:, j] for j in columns], mask=[m[:, j] > 0 for j in columns])
        return np.sum(np.maximum(m, 0), axis=1), {"positive": positive}

    return fun, answer


@case("vmap_of_cond", "several_sites", "vmap", args=(X4,), vmap=False)
def vmap_of_cond_beside_a_site() -> Program:
    """A sure site and a lane-dependent one under one name."""

    def fun(xs):
        def lane(x):
            sawlog.log("v", x)

            def yes(v):
                sawlog.log("v", v * 10)
                return v

            return lax.cond(x > 1, yes, lambda v: v, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        return xs, {"v": many([xs, xs * 10], mask=[np.ones(4, bool), xs > 1])}

    return fun, answer


@case("vmap_of_cond", "nested_cond", "vmap", args=(X4,), vmap=False)
def vmap_of_cond_in_cond() -> Program:
    """Two batched predicates: the lanes for which both hold."""

    def fun(xs):
        def lane(x):
            def inner(v):
                sawlog.log("deep", v)
                return v

            def outer(v):
                return lax.cond(v > 1, inner, lambda w: w * 0, v)

            return lax.cond(x < 3, outer, lambda v: -v, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        deep = (xs < 3) & (xs > 1)
        out = np.where(xs < 3, np.where(xs > 1, xs, ZERO), -xs)
        return out, {"deep": once(xs, mask=deep)}

    return fun, answer


@case("vmap_of_cond", "nested_cond", "vmap", "jit", args=(X4,), vmap=False, tap=False)
def vmap_of_cond_in_jit_in_cond() -> Program:
    """A lane takes one of three ways, two of them in a jitted helper: all log in one place."""

    def fun(xs):
        def lane(x):
            @jax.jit
            def helper(v):
                def far(v):
                    sawlog.log("v", v * 10)
                    return v

                def near(v):
                    sawlog.log("v", v * 100)
                    return -v

                return lax.cond(v > 1, far, near, v)

            def below(v):
                sawlog.log("v", v)
                return v * 2

            return lax.cond(x > 0, helper, below, x)

        return jax.vmap(lane)(xs)

    def answer(xs):
        out = np.where(xs > 1, xs, np.where(xs > 0, -xs, xs * 2))
        return out, {"v": once(np.where(xs > 1, xs * 10, np.where(xs > 0, xs * 100, xs)))}

    return fun, answer


@case("vmap_of_cond", "vmap", args=(X4,), vmap=False)
def vmap_of_two_conds_one_after_the_other() -> Program:
    """Another branch of another cond excludes nothing: a lane may log in both."""

    def fun(xs):
        def lane(x):
            lax.cond(x > 0, lambda v: sawlog.log("v", v), lambda v: None, x)
            lax.cond(x < 3, lambda v: None, lambda v: sawlog.log("v", v * 10), x)
            return x

        return jax.vmap(lane)(xs)

    def answer(xs):
        return xs, {"v": many([xs, xs * 10], mask=[xs > 0, xs >= 3])}

    return fun, answer
