"""Variables of flax nnx that hold references: what a function writes into them must arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog

nnx = pytest.importorskip("flax.nnx")


class Counter(nnx.Module):
    """A module with a reference, an array, and the same reference under another name."""

    def __init__(self) -> None:
        self.total = nnx.Param(jnp.zeros(2), ref=True)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.alias = self.total


def add(counter: Any, x: Any) -> Any:
    counter.total[...] = counter.total[...] + x
    counter.calls[...] = counter.calls[...] + 1
    sawlog.log({"total": counter.alias[...]})
    return counter.total[...].sum()


def ignore(logs: Any) -> None:
    del logs


WAYS: dict[str, Callable[[Any], Any]] = {
    "spool": sawlog.spool,
    "jit of spool": lambda f: nnx.jit(sawlog.spool(f)),
    "spool of jit": lambda f: sawlog.spool(nnx.jit(f)),
    "tap": lambda f: sawlog.tap(f, ignore),
    "jit of tap": lambda f: nnx.jit(sawlog.tap(f, ignore)),
}


@pytest.mark.parametrize("way", WAYS)
def test_references_keep_what_is_written(way: str) -> None:
    counter, fun = Counter(), WAYS[way](add)
    outs = [fun(counter, jnp.float32(i)) for i in (1, 2, 3)]
    np.testing.assert_array_equal(counter.total[...], [6, 6])
    assert counter.calls[...] == 3
    assert counter.alias is counter.total
    if "spool" in way:
        np.testing.assert_array_equal([logs["total"][0] for _, logs in outs], [1, 3, 6])
        outs = [out for out, _ in outs]
    assert [float(out) for out in outs] == [2, 6, 12]


@pytest.mark.parametrize("order", ["jit of spool", "spool of jit"])
def test_under_plain_jit_references_are_no_copies(order: str) -> None:
    def write(counter, x):
        counter.total[...] = counter.total[...] + x
        sawlog.log({"total": counter.total[...]})

    counter = Counter()
    del counter.alias
    fun = jax.jit(sawlog.spool(write)) if order == "jit of spool" else sawlog.spool(jax.jit(write))
    for i in (1, 2):
        _, logs = fun(counter, jnp.float32(i))
    np.testing.assert_array_equal(logs["total"], [3, 3])
    np.testing.assert_array_equal(counter.total[...], [3, 3])


def test_a_variable_is_an_argument() -> None:
    def write(variable, x):
        variable[...] = variable[...] * x
        sawlog.log({"x": variable[...]})

    variable, fun = nnx.Param(jnp.ones(2), ref=True), sawlog.spool(write)
    for _ in range(2):
        _, logs = fun(variable, jnp.float32(3))
    np.testing.assert_array_equal(logs["x"], [9, 9])
    np.testing.assert_array_equal(variable[...], [9, 9])
