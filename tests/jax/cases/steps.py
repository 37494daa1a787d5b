"""Step axes, and selection by tags and names."""

from __future__ import annotations

import jax
import numpy as np
from jax import numpy as jnp

import sawlog

from .base import X3, X4, Program, case, many, once


@case("steps", args=(X3,))
def step_of_one_site() -> Program:
    """A step goes with its value: a scalar for a single log."""

    def fun(x):
        sawlog.log({"x": x}, step=5)
        return x

    def answer(x):
        return x, {"x": once(x, step=np.int32(5))}

    return fun, answer


@case("steps", args=(X3,), order=("loss", "loss"))
def two_step_axes() -> Program:
    """Several step axes at once."""

    def fun(x):
        sawlog.log({"loss": x.sum()}, step=1, episode=10)
        sawlog.log({"loss": x.max()}, step=2, episode=20)
        return x

    def answer(x):
        return x, {"loss": many([np.sum(x), np.max(x)], step=[1, 2], episode=[10, 20])}

    return fun, answer


@case("steps", args=(X3,))
def different_steps_per_key() -> Program:
    """One key has a step, another an episode, a third nothing."""

    def fun(x):
        sawlog.log({"a": x}, step=3)
        sawlog.log({"b": x}, episode=4)
        sawlog.log({"c": x})
        return x

    def answer(x):
        return x, {
            "a": once(x, step=np.int32(3)),
            "b": once(x, episode=np.int32(4)),
            "c": once(x),
        }

    return fun, answer


@case("steps", "scan", args=(X4,))
def steps_in_scan() -> Program:
    """Step axes of a loop: the index and a value of the carry."""

    def fun(xs):
        def body(carry, x):
            index, total = carry
            total = total + x
            sawlog.log({"total": total}, step=index, episode=index // 2)
            return (index + 1, total), None

        return jax.lax.scan(body, (0, jnp.float32(0)), xs)[0][1]

    def answer(xs):
        totals = list(np.cumsum(xs))
        logged = many(totals, step=range(4), episode=[0, 0, 1, 1])
        return totals[-1], {"total": logged}

    return fun, answer


@case("tags", args=(X3,), options={"tags": "debug"})
def tags_select() -> Program:
    """Only the sites with the tag are seen."""

    def fun(x):
        sawlog.log({"a": x}, tags=("debug", "slow"))
        sawlog.log({"b": x}, tags=("slow",))
        sawlog.log({"c": x})
        return x

    def answer(x):
        return x, {"a": once(x)}

    return fun, answer


@case("tags", "scan", args=(X3,), options={"tags": "inner"})
def tags_select_in_scan() -> Program:
    """Selection reaches into loops."""

    def fun(xs):
        def body(carry, x):
            sawlog.log({"x": x}, tags=["inner"])
            sawlog.log({"carry": carry}, tags=["outer"])
            return carry + x, None

        return jax.lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        return np.sum(xs), {"x": many(list(xs))}

    return fun, answer


@case("argnames", args=(X3,), options={"argnames": "loss"})
def argnames_one_string() -> Program:
    """A string is one name, not its letters."""

    def fun(x):
        sawlog.log({"loss": x.sum(), "l": x, "o": x, "s": x})
        return x

    def answer(x):
        return x, {"loss": once(np.sum(x))}

    return fun, answer


@case("argnames", args=(X3,), options={"argnames": ["a", "c"]})
def argnames_list() -> Program:
    """Several names, over several sites."""

    def fun(x):
        sawlog.log({"a": x, "b": x})
        sawlog.log({"c": x + 1, "a": x + 2})
        return x

    def answer(x):
        return x, {"a": many([x, x + 2]), "c": once(x + 1)}

    return fun, answer


@case("argnames", "tags", args=(X3,), options={"argnames": ["a", "b"], "tags": "t"})
def argnames_and_tags() -> Program:
    """With both, a site must match both."""

    def fun(x):
        sawlog.log({"a": x, "c": x}, tags=("t",))
        sawlog.log({"b": x})
        return x

    def answer(x):
        return x, {"a": once(x)}

    return fun, answer


@case("prefix", args=(X3,))
def prefix_of_the_site() -> Program:
    """The site's prefix is put before each key."""

    def fun(x):
        sawlog.log({"loss": x.sum(), "x": x}, prefix="train/", step=1)
        return x

    def answer(x):
        one = np.int32(1)
        return x, {"train/loss": once(np.sum(x), step=one), "train/x": once(x, step=one)}

    return fun, answer


@case("prefix", args=(X3,), options={"prefix": "run/"})
def prefix_of_the_transformation() -> Program:
    """The transformation's prefix comes first."""

    def fun(x):
        sawlog.log({"a": x}, prefix="train/")
        sawlog.log({"b": x + 1})
        return x

    def answer(x):
        return x, {"run/train/a": once(x), "run/b": once(x + 1)}

    return fun, answer
