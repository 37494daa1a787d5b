"""Straight-line programs: values of every kind and dtype."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
from jax import numpy as jnp

import sawlog

from .base import X3, X4, Program, case, f32, many, once


@case("pytree_value", args=(X3,))
def pytree_value() -> Program:
    """A pytree as a value keeps its structure."""

    def fun(x):
        sawlog.log({"state": {"mean": x.mean(), "parts": (x, [x * 2])}})
        return x

    def answer(x):
        return x, {"state": once({"mean": np.mean(x), "parts": (x, [x * 2])})}

    return fun, answer


@case("pytree_value", args=(X3,))
def pytree_logged_twice() -> Program:
    """Two pytrees under one name are stacked leaf by leaf."""

    def fun(x):
        sawlog.log({"state": {"a": x, "b": x.sum()}}, step=0)
        sawlog.log({"state": {"a": x + 1, "b": x.max()}}, step=1)
        return x

    def answer(x):
        first, second = {"a": x, "b": np.sum(x)}, {"a": x + 1, "b": np.max(x)}
        return x, {"state": many([first, second], step=[0, 1])}

    return fun, answer


@case("pytree_value", "scan", args=(X3,))
def pytree_in_scan() -> Program:
    """A pytree in a loop gains the entry axis at each leaf."""

    def fun(xs):
        def body(carry, x):
            carry = carry + x
            sawlog.log({"tree": {"carry": carry, "pair": (x, -x)}})
            return carry, None

        return jax.lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        total, seen = np.float32(0), []
        for x in xs:
            total = total + x
            seen.append({"carry": total, "pair": (x, -x)})
        return total, {"tree": many(seen)}

    return fun, answer


@case("dtypes", args=(X4,))
def dtype_small_floats() -> Program:
    """bfloat16 and float16 keep their dtype."""

    def fun(x):
        sawlog.log({"bf16": x.astype(jnp.bfloat16), "f16": x.astype(jnp.float16)})
        return x

    def answer(x):
        logs = {"bf16": once(x.astype(ml_dtypes.bfloat16)), "f16": once(x.astype(np.float16))}
        return x, logs

    return fun, answer


@case("dtypes", args=(np.array([0, 1, 2, 100], np.int32),), grad=False)
def dtype_integers() -> Program:
    """Integers of every width, signed and unsigned."""
    names = ("int8", "int16", "int32", "uint8", "uint16", "uint32")

    def fun(n):
        sawlog.log({name: n.astype(name) for name in names})
        return n * 2

    def answer(n):
        return n * 2, {name: once(n.astype(name)) for name in names}

    return fun, answer


@case("dtypes", args=(X4,))
def dtype_bool_and_complex() -> Program:
    """Truth values and complex numbers."""

    def fun(x):
        sawlog.log({"positive": x > 0, "wave": x + 2j * x})
        return x

    def answer(x):
        wave = (x + 2j * x).astype(np.complex64)
        return x, {"positive": once(x > 0), "wave": once(wave)}

    return fun, answer


@case("dtypes", "prng_key", args=lambda: (jax.random.key(7), X3), vmap=False)
def dtype_prng_key() -> Program:
    """New-style PRNG keys are values like any other."""

    def fun(key, x):
        sawlog.log("key", key)
        first, second = jax.random.split(key)
        sawlog.log({"split": first})
        sawlog.log({"split": second})
        return x + jax.random.uniform(first)

    def answer(key, x):
        first, second = jax.random.split(key)
        out = x + np.asarray(jax.random.uniform(first))
        return out, {"key": once(key), "split": many([first, second])}

    return fun, answer


@case("dtypes", "prng_key", "scan", args=lambda: (jax.random.key(3),), vmap=False, grad=False)
def prng_key_in_scan() -> Program:
    """A PRNG key logged in a loop."""

    def fun(key):
        def body(key, _):
            key, sub = jax.random.split(key)
            sawlog.log("sub", sub)
            return key, jax.random.bits(sub)

        return jax.lax.scan(body, key, length=3)[1]

    def answer(key):
        subs, bits = [], []
        for _ in range(3):
            key, sub = jax.random.split(key)
            subs.append(sub)
            bits.append(np.asarray(jax.random.bits(sub)))
        return np.stack(bits), {"sub": many(subs)}

    return fun, answer


@case("python_scalars", args=(X3,))
def python_scalar_values() -> Program:
    """Python numbers become scalar arrays."""

    def fun(x):
        sawlog.log({"float": 0.5, "int": 3, "flag": True})
        return x

    def answer(x):
        logs = {"float": once(f32(0.5)), "int": once(np.int32(3)), "flag": once(np.bool_(True))}
        return x, logs

    return fun, answer


@case("python_scalars", args=(X3,))
def python_scalar_twice() -> Program:
    """Python numbers under one name, stacked."""

    def fun(x):
        sawlog.log("rate", 0.5)
        sawlog.log("rate", 0.25)
        return x

    def answer(x):
        return x, {"rate": many([f32(0.5), f32(0.25)])}

    return fun, answer


@case("dtypes", args=(np.zeros((0, 3), np.float32),))
def empty_array_value() -> Program:
    """An array without elements."""

    def fun(x):
        sawlog.log("nothing", x)
        return x.sum()

    def answer(x):
        return np.sum(x), {"nothing": once(x)}

    return fun, answer
