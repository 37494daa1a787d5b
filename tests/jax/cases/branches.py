"""Programs with `cond` and `switch`."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .base import X3, ZERO, Program, absent, case, many, once

TRUE, FALSE = np.bool_(True), np.bool_(False)


def cond_same_key(flag, x):
    """A cond that logs one key in both branches."""

    def double(v):
        sawlog.log("v", v * 2)
        return v + 1

    def negate(v):
        sawlog.log("v", -v)
        return v - 1

    return lax.cond(flag, double, negate, x)


@case("cond", args=(TRUE, X3), vmap=False)
def cond_same_key_true() -> Program:
    """One key in both branches: the value as it is."""

    def answer(flag, x):
        return x + 1, {"v": once(x * 2)}

    return cond_same_key, answer


@case("cond", args=(FALSE, X3), vmap=False)
def cond_same_key_false() -> Program:
    """The other branch."""

    def answer(flag, x):
        return x - 1, {"v": once(-x)}

    return cond_same_key, answer


def cond_differing_keys(flag, x):
    """A cond whose branches log different keys, of different shapes."""

    def yes(v):
        sawlog.log({"yes": v * 2, "both": v.sum()}, step=1)
        return v

    def no(v):
        sawlog.log({"no": v.astype(jnp.int32), "both": v.max()}, step=2)
        return -v

    return lax.cond(flag, yes, no, x)


@case("cond", "differing_keys", args=(TRUE, X3), vmap=False)
def cond_differing_keys_true() -> Program:
    """Keys of the branch that did not run are gone."""

    def answer(flag, x):
        one = np.int32(1)
        logs = {
            "yes": once(x * 2, step=one),
            "both": once(np.sum(x), step=one),
            "no": absent(x.astype(np.int32)),
        }
        return x, logs

    return cond_differing_keys, answer


@case("cond", "differing_keys", args=(FALSE, X3), vmap=False)
def cond_differing_keys_false() -> Program:
    """The other way round."""

    def answer(flag, x):
        two = np.int32(2)
        logs = {
            "yes": absent(x),
            "both": once(np.max(x), step=two),
            "no": once(x.astype(np.int32), step=two),
        }
        return -x, logs

    return cond_differing_keys, answer


@case("cond", "one_branch", args=(X3,), vmap=False)
def cond_log_in_one_branch_taken() -> Program:
    """Only one branch logs, and it runs."""

    def fun(x):
        def alarm(v):
            sawlog.log("alarm", v.max())
            return v

        return lax.cond(x.max() > 2, alarm, lambda v: v * 0, x)

    def answer(x):
        return x, {"alarm": once(np.max(x))}

    return fun, answer


@case("cond", "one_branch", args=(X3,), vmap=False)
def cond_log_in_one_branch_not_taken() -> Program:
    """Only one branch logs, and it does not run."""

    def fun(x):
        def alarm(v):
            sawlog.log("alarm", v.max())
            return v

        return lax.cond(x.max() > 20, alarm, lambda v: v + 1, x)

    def answer(x):
        return x + 1, {"alarm": absent(ZERO)}

    return fun, answer


@case("cond", "python_bool", args=(X3,))
def cond_constant_predicate() -> Program:
    """A predicate that is a Python bool."""

    def fun(x):
        return cond_same_key(True, x)

    def answer(x):
        return x + 1, {"v": once(x * 2)}

    return fun, answer


@case("cond", "closure", args=(X3,), vmap=False)
def cond_closure() -> Program:
    """Branches without operands, closing over the values."""

    def fun(x):
        scale = x.sum()

        def yes():
            sawlog.log("scaled", x * scale)
            return scale

        return lax.cond(x[0] > 0, yes, lambda: -scale)

    def answer(x):
        return np.sum(x), {"scaled": once(x * np.sum(x))}

    return fun, answer


@case("cond", "several_sites", args=(FALSE, X3), vmap=False)
def site_beside_cond_not_taken() -> Program:
    """A site outside and one in a branch that did not run: an axis with one entry."""

    def fun(flag, x):
        sawlog.log("v", x)

        def yes(v):
            sawlog.log("v", v * 2)
            return v

        return lax.cond(flag, yes, lambda v: v, x)

    def answer(flag, x):
        return x, {"v": many([x])}

    return fun, answer


@case("cond", "several_sites", args=(TRUE, X3), vmap=False)
def site_beside_cond_taken() -> Program:
    """The same when the branch ran."""

    def fun(flag, x):
        sawlog.log("v", x)

        def yes(v):
            sawlog.log("v", v * 2)
            return v

        out = lax.cond(flag, yes, lambda v: v, x)
        sawlog.log("v", x * 3)
        return out

    def answer(flag, x):
        return x, {"v": many([x, x * 2, x * 3])}

    return fun, answer


@case("cond", "several_sites", args=(FALSE, X3), vmap=False)
def cond_twice_in_one_branch() -> Program:
    """One branch logs twice, the other once: an entry axis, entries that ran."""

    def fun(flag, x):
        def yes(v):
            sawlog.log("v", v)
            sawlog.log("v", v * 2)
            return v

        def no(v):
            sawlog.log("v", -v)
            return v

        return lax.cond(flag, yes, no, x)

    def answer(flag, x):
        return x, {"v": many([-x])}

    return fun, answer


@case("cond", "jit", args=(TRUE, X3), vmap=False)
def cond_with_jitted_branches() -> Program:
    """The branches are one jitted helper and a lambda around it."""

    @jax.jit
    def helper(v):
        sawlog.log("v", v)
        return v * 2

    def fun(flag, x):
        return lax.cond(flag, helper, lambda v: helper(v + 1), x)

    def answer(flag, x):
        return x * 2, {"v": once(x)}

    return fun, answer


@case("cond", "nested_cond", args=(TRUE, FALSE, X3), vmap=False)
def cond_in_cond() -> Program:
    """cond in cond, with keys at each level."""

    def fun(a, b, x):
        def inner_yes(v):
            sawlog.log({"deep": v})
            return v

        def inner_no(v):
            sawlog.log({"shallow": v * 2})
            return v * 2

        def outer_yes(v):
            sawlog.log({"outer": v + 1})
            return lax.cond(b, inner_yes, inner_no, v)

        def outer_no(v):
            sawlog.log({"deep": -v})
            return -v

        return lax.cond(a, outer_yes, outer_no, x)

    def answer(a, b, x):
        return x * 2, {"outer": once(x + 1), "shallow": once(x * 2), "deep": absent(x)}

    return fun, answer


def switch_three(index, x):
    """A switch whose three branches log different keys."""

    def zero(v):
        sawlog.log({"zero": v, "common": v[0]})
        return v

    def one(v):
        sawlog.log({"one": v.sum()})
        return v + 1

    def two(v):
        sawlog.log({"two": {"a": v * 2, "b": v > 1}, "common": v[1]})
        return v + 2

    return lax.switch(index, [zero, one, two], x)


@case("switch", "differing_keys", args=(np.int32(0), X3), vmap=False)
def switch_first() -> Program:
    """The first of three differing branches."""

    def answer(index, x):
        tree = {"a": x * 2, "b": x > 1}
        logs = {
            "zero": once(x),
            "common": once(x[0]),
            "one": absent(ZERO),
            "two": absent(tree),
        }
        return x, logs

    return switch_three, answer


@case("switch", "differing_keys", args=(np.int32(1), X3), vmap=False)
def switch_second() -> Program:
    """The second: the key that the others share is absent."""

    def answer(index, x):
        tree = {"a": x * 2, "b": x > 1}
        logs = {
            "zero": absent(x),
            "common": absent(ZERO),
            "one": once(np.sum(x)),
            "two": absent(tree),
        }
        return x + 1, logs

    return switch_three, answer


@case("switch", "differing_keys", args=(np.int32(7), X3), vmap=False)
def switch_clamped() -> Program:
    """An index out of range means the last branch."""

    def answer(index, x):
        logs = {
            "zero": absent(x),
            "common": once(x[1]),
            "one": absent(ZERO),
            "two": once({"a": x * 2, "b": x > 1}),
        }
        return x + 2, logs

    return switch_three, answer
