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

    return lax.cond(x > 1, high, lambda w: w * 2, w)


def switch(w: Any, x: Any) -> Any:
    def high(w):
        sawlog.log({"y": w * x})
        return w * x

    return lax.switch(x.astype(int), [lambda w: w, lambda w: w, high, high], w)


def loop(w: Any, x: Any) -> Any:
    def body(carry):
        sawlog.log({"y": w * carry[0]})
        return carry[0] * w, carry[1] + 1

    return lax.while_loop(lambda carry: carry[1] < x, body, (w, 0))[0]


def scanned(w: Any, x: Any) -> Any:
    return lax.scan(lambda c, i: (branch(c, x + i), None), w, jnp.arange(2))[0]


PROGRAMS = {"cond": branch, "switch": switch, "while": loop, "scan": scanned}
NUMBERS = {"float": 0.5, "int": 2, "bool": True, "numpy": np.float32(0.5)}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("derived", ["plain", "grad", "jvp"])
def test_python_numbers(name: str, number: str, derived: str) -> None:
    """The same as with an array, with and without a spool around it."""
    fun, value = PROGRAMS[name], NUMBERS[number]
    if number != "float" and (derived != "plain" or name == "scan"):
        return
    if derived == "grad" and name == "while":
        return
    made = {
        "plain": fun,
        "grad": jax.grad(fun),
        "jvp": lambda w, x: jax.jvp(fun, (w, x), (1.0, 1.0))[1],
    }[derived]
    mapped = jax.vmap(made, (None, 0))
    array = jnp.float32(value) if derived != "plain" else jnp.asarray(value)
    expected, expected_logs = sawlog.spool(mapped, capacity=9)(array, XS)
    np.testing.assert_allclose(mapped(value, XS), expected, rtol=1e-6)
    out, logs = sawlog.spool(lambda x: mapped(value, x), capacity=9)(XS)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    np.testing.assert_array_equal(logs.mask["y"], expected_logs.mask["y"])
    mask = np.asarray(logs.mask["y"])
    np.testing.assert_allclose(logs["y"][mask], expected_logs["y"][mask], rtol=1e-6)
