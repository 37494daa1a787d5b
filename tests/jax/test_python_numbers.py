"""Python numbers as arguments of mapped programs: JAX keeps them as numbers until they are used."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog

XS = jnp.array([0.0, 2.0, 3.0])


def branch(w: Any, x: Any) -> Any:
    def high(w):
        sawlog.log({"y": w * x})
        return jnp.sin(w * x)

    return lax.cond(x > 1, high, lambda w: w * 2.0, w)


def switch(w: Any, x: Any) -> Any:
    def high(w):
        sawlog.log({"y": w * x})
        return w * x

    return lax.switch(x.astype(int), [lambda w: w * 1.0, lambda w: w * 1.0, high, high], w)


def loop(w: Any, x: Any) -> Any:
    def body(carry):
        sawlog.log({"y": w * carry[0]})
        return carry[0] * w, carry[1] + 1

    return lax.while_loop(lambda carry: carry[1] < x, body, (w, 0))[0]


def scanned(w: Any, x: Any) -> Any:
    return lax.scan(lambda c, i: (branch(c, x + i), None), w, jnp.arange(2))[0]


PROGRAMS = {"cond": branch, "switch": switch, "while": loop, "scan": scanned}
NUMBERS = {"float": 0.5, "int": 2, "bool": True, "numpy": np.float32(0.5)}
CASES = [
    *(("plain", name, number) for name in ("cond", "switch") for number in NUMBERS),
    *(("plain", name, "float") for name in ("while", "scan")),
    *(("grad", name, "float") for name in ("cond", "switch", "scan")),
    *(("jvp", name, "float") for name in PROGRAMS),
]


@pytest.mark.parametrize(("derived", "name", "number"), CASES)
def test_python_numbers(derived: str, name: str, number: str) -> None:
    """The same as with an array, with and without a spool around it."""
    fun, value = PROGRAMS[name], NUMBERS[number]
    made = {
        "plain": fun,
        "grad": jax.grad(fun),
        "jvp": lambda w, x: jax.jvp(fun, (w, x), (1.0, 1.0))[1],
    }[derived]
    mapped = jax.vmap(made, (None, 0))
    expected, expected_logs = sawlog.spool(mapped, capacity=9)(jnp.float32(value), XS)
    np.testing.assert_allclose(mapped(value, XS), expected, rtol=1e-6)
    out, logs = sawlog.spool(lambda x: mapped(value, x), capacity=9)(XS)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    mask = np.asarray(logs.mask["y"])
    np.testing.assert_array_equal(mask, expected_logs.mask["y"])
    np.testing.assert_allclose(logs["y"][mask], expected_logs["y"][mask], rtol=1e-6)
