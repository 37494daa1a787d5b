"""Straight-line programs: how often and where a log is called."""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

import sawlog

from .base import ONE, X3, Program, case, f32, many, once


@case("plain", args=(X3,))
def one_site() -> Program:
    """One value, as it is."""

    def fun(x):
        y = x * 2
        sawlog.log({"y": y})
        return y.sum()

    def answer(x):
        return np.sum(x * 2), {"y": once(x * 2)}

    return fun, answer


@case("plain", args=(X3,))
def name_and_value() -> Program:
    """The two-argument form."""

    def fun(x):
        sawlog.log("total", x.sum())
        return x + 1

    def answer(x):
        return x + 1, {"total": once(np.sum(x))}

    return fun, answer


@case("plain", args=(X3,))
def no_site() -> Program:
    """A program without logs gives an empty logdict."""

    def fun(x):
        return x * 3

    def answer(x):
        return x * 3, {}

    return fun, answer


@case("plain", args=(X3,))
def empty_dict() -> Program:
    """Logging an empty dict is no log."""

    def fun(x):
        sawlog.log({})
        return x - 1

    def answer(x):
        return x - 1, {}

    return fun, answer


@case("several_sites", args=(X3,))
def two_sites_one_name() -> Program:
    """Two places under one name are stacked in program order."""

    def fun(x):
        sawlog.log({"v": x})
        y = x * x
        sawlog.log({"v": y})
        return y

    def answer(x):
        return x * x, {"v": many([x, x * x])}

    return fun, answer


@case("several_sites", args=(ONE,), order=("a", "b", "a", "c", "b"))
def interleaved_names() -> Program:
    """Callbacks come in program order, also between names."""

    def fun(x):
        sawlog.log("a", x)
        sawlog.log("b", x + 1)
        sawlog.log("a", x + 2)
        sawlog.log("c", x + 3)
        sawlog.log("b", x + 4)
        return x

    def answer(x):
        logs = {"a": many([x, x + 2]), "b": many([x + 1, x + 4]), "c": once(x + 3)}
        return x, logs

    return fun, answer


@case("several_sites", args=(X3,))
def python_loop() -> Program:
    """A Python loop is several calls of one line: stacked."""

    def fun(x):
        for i in range(3):
            x = x * (i + 1)
            sawlog.log({"x": x}, step=i)
        return x

    def answer(x):
        seen = [x, x * 2, x * 2 * 3]
        return seen[-1], {"x": many(seen, step=range(3))}

    return fun, answer


@case("several_sites", args=(X3,))
def helper_called_three_times() -> Program:
    """A plain Python helper with a log in it."""

    def helper(x):
        sawlog.log("in", x)
        return x * 2

    def fun(x):
        return helper(helper(helper(x)))

    def answer(x):
        return x * 8, {"in": many([x, x * 2, x * 4])}

    return fun, answer


@case("forty_keys", args=(X3,))
def forty_keys_in_one_dict() -> Program:
    """Forty keys in one call; order does not depend on their number."""

    def fun(x):
        sawlog.log({f"key{i}": x * i for i in range(40)})
        return x.sum()

    def answer(x):
        return np.sum(x), {f"key{i}": once(x * np.float32(i)) for i in range(40)}

    return fun, answer


@case("plain", args=(X3,))
def same_value_under_two_names() -> Program:
    """One array, two keys of one call."""

    def fun(x):
        sawlog.log({"a": x, "b": x})
        return x

    def answer(x):
        return x, {"a": once(x), "b": once(x)}

    return fun, answer


@case("plain", args=(X3,))
def constant_value() -> Program:
    """A value that does not depend on the arguments."""

    def fun(x):
        sawlog.log("constant", jnp.arange(3))
        sawlog.log("numpy", np.array([1.0, 2.0], np.float32))
        return x

    def answer(x):
        return x, {"constant": once(np.arange(3, dtype=np.int32)), "numpy": once(f32(1.0, 2.0))}

    return fun, answer


@case("plain", args=(X3,))
def argument_logged_unchanged() -> Program:
    """The argument itself is both the log and the output."""

    def fun(x):
        sawlog.log("x", x)
        return x

    def answer(x):
        return x, {"x": once(x)}

    return fun, answer


@case("plain", args=(X3,), grad=False)
def output_none() -> Program:
    """A program that returns nothing but logs."""

    def fun(x):
        sawlog.log("x", x + 1)

    def answer(x):
        return None, {"x": once(x + 1)}

    return fun, answer


@case("plain", args=({"w": X3, "b": ONE}, (X3, None)))
def output_pytree() -> Program:
    """Pytrees in, pytrees out."""

    def fun(params, batch):
        out = params["w"] * batch[0] + params["b"]
        sawlog.log("out", out)
        return {"out": out, "none": None, "pair": (out.sum(), params["b"])}

    def answer(params, batch):
        out = params["w"] * batch[0] + params["b"]
        return {"out": out, "none": None, "pair": (np.sum(out), params["b"])}, {"out": once(out)}

    return fun, answer
