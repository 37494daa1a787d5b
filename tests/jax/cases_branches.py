"""Programs with `cond` and `switch`."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .cases_base import ONE, X3, X4, ZERO, Program, absent, case, f32, many, once

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
