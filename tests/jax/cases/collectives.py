"""Programs with collectives over the axis of a `vmap`."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

import sawlog

from .base import X3, Program, case, many, once


@case("collectives", "vmap", args=(X3,))
def vmap_psum() -> Program:
    """A sum over a named axis is one value for all lanes: broadcast."""

    def fun(xs):
        def lane(x):
            total = lax.psum(x, "i")
            sawlog.log({"total": total, "share": x / total})
            return total

        return jax.vmap(lane, axis_name="i")(xs)

    def answer(xs):
        total = np.sum(xs)
        return np.full(3, total), {"total": once(np.full(3, total)), "share": once(xs / total)}

    return fun, answer


@case("collectives", "vmap", args=(X3,))
def vmap_pmean_and_index() -> Program:
    """The lane's index and the mean over lanes."""

    def fun(xs):
        def lane(x):
            index = lax.axis_index("i")
            mean = lax.pmean(x, "i")
            sawlog.log({"centred": x - mean}, step=index)
            return x - mean

        return jax.vmap(lane, axis_name="i")(xs)

    def answer(xs):
        centred = xs - np.mean(xs)
        return centred, {"centred": once(centred, step=np.arange(3, dtype=np.int32))}

    return fun, answer


@case("collectives", "vmap", args=(X3,))
def vmap_all_gather_and_ppermute() -> Program:
    """Gathered and shifted values."""

    def fun(xs):
        def lane(x):
            shifted = lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])
            sawlog.log({"all": lax.all_gather(x, "i"), "shifted": shifted})
            return shifted

        return jax.vmap(lane, axis_name="i")(xs)

    def answer(xs):
        shifted = np.roll(xs, 1)
        return shifted, {"all": once(np.stack([xs] * 3)), "shifted": once(shifted)}

    return fun, answer


@case("collectives", "vmap", "scan", args=(X3,))
def vmap_psum_in_scan() -> Program:
    """A collective in a loop under vmap."""

    def fun(xs):
        def lane(x):
            def body(carry, _):
                carry = carry + lax.psum(carry, "i")
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, x, length=2)[0]

        return jax.vmap(lane, axis_name="i")(xs)

    def answer(xs):
        first = xs + np.sum(xs)
        second = first + np.sum(first)
        return second, {"carry": many([first, second])}

    return fun, answer
