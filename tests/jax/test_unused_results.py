"""Functions that JAX traces only when a program is lowered, in equations that it never lowers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import sawlog

call_p = Primitive("call_unused")
call_p.def_impl(lambda x, fun: jax.jit(fun)(x))
call_p.def_abstract_eval(lambda x, fun: x)
mlir.register_lowering(
    call_p, mlir.lower_fun(lambda x, fun: fun(x), multiple_results=False), cacheable=False
)


def double(x: Any) -> Any:
    sawlog.log({"x": x})
    return 2 * x


def unused(x: Any) -> Any:
    call_p.bind(x, fun=double)
    return x + 1


def needs_an_axis(x: Any) -> Any:
    return lax.psum(x, "axis")


PROGRAMS = {
    "alone": unused,
    "jit": lambda x: (jax.jit(lambda x: call_p.bind(x, fun=double))(x), x + 1)[1],
    "part of a jit": lambda x: jax.jit(lambda x: (x + 1, call_p.bind(x, fun=double)))(x)[0],
    "scan": lambda x: lax.scan(lambda c, _: (unused(c), None), x, None, length=2)[0],
    "branch": lambda x: lax.cond(x > 0, unused, lambda x: x, x),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("way", ["spool", "tap"])
def test_they_are_refused(name: str, way: str) -> None:
    program = PROGRAMS[name]
    wrapped = sawlog.spool(program) if way == "spool" else sawlog.tap(program, lambda logs: None)
    with pytest.raises(sawlog.errors.UnsupportedPrimitiveError, match=r"'x'.*Hint:"):
        wrapped(jnp.float32(3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_left_alone_where_nothing_is_lost(name: str) -> None:
    program, three = PROGRAMS[name], jnp.float32(3)
    expected = jax.jit(program)(three)
    assert sawlog.spool(program, argnames="other")(three)[0] == expected
    assert sawlog.strip(program)(three) == expected


def test_a_function_that_cannot_be_lowered_alone_is_left_alone() -> None:
    def unlowered(x):
        sawlog.log({"x": x})
        call_p.bind(x, fun=needs_an_axis)
        return x + 1

    assert sawlog.spool(unlowered)(jnp.float32(3))[1]["x"] == 3
