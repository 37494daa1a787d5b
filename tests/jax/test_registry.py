"""`register_rule`: a custom primitive, with and without a rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

import sawlog
from sawlog.errors import UnsupportedPrimitiveError
from sawlog.jax._core import registry as _registry

_numbers = itertools.count()


def line_of(marker: str) -> str:
    """`file:line` of the one line here that ends in the comment `# marker`."""
    with open(__file__) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1
    return f"{__file__}:{found[0]}"


def new_call() -> Any:
    """Return a new primitive that calls the jaxpr in its parameters."""
    primitive = Primitive(f"user_call_{next(_numbers)}")
    primitive.multiple_results = True

    def run(*args: Any, call_jaxpr: Any) -> Any:
        return jaxpr_as_fun(call_jaxpr)(*args)

    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(
        lambda *avals, call_jaxpr: (call_jaxpr.out_avals, call_jaxpr.effects)
    )
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    return primitive


def call(primitive: Any, fun: Any, x: Any) -> Any:
    closed = jax.make_jaxpr(fun)(x)
    return primitive.bind(x, call_jaxpr=closed)[0]  # the bind


def square(x: Any) -> Any:
    sawlog.log({"x": x}, step=1)  # the log
    y = lax.cond(x > 1, lambda: (sawlog.log({"big": x}), x)[1], lambda: x)
    return y * x


@pytest.fixture
def primitive() -> Any:
    return new_call()


def calls_it(interpreter: Any, eqn: Any, values: Any) -> Any:
    inner = eqn.params["call_jaxpr"]
    return interpreter.run(inner.jaxpr, inner.consts, values)


def rebinds_it(interpreter: Any, eqn: Any, values: Any) -> Any:
    new = interpreter.rewrite(eqn.params["call_jaxpr"])
    outs = eqn.primitive.bind(*interpreter.leading(new), *values, call_jaxpr=new.closed)
    return interpreter.split(new, outs)


@pytest.fixture(params=[calls_it, rebinds_it])
def ruled(primitive: Any, request: Any) -> Iterator[Any]:
    """Return a primitive with a rule, written in each of two ways."""
    rule = sawlog.register_rule(primitive)(request.param)
    assert rule is request.param
    yield primitive
    del _registry._rules[primitive]


def test_spool_sees_inside(ruled: Any) -> None:
    fun = lambda x: call(ruled, square, x) + 1
    for spooled in (sawlog.spool(fun), jax.jit(sawlog.spool(fun)), sawlog.spool(jax.jit(fun))):
        out, logs = spooled(3.0)
        assert out == 10
        assert set(logs) == {"x", "big"}
        assert (logs["x"], logs["big"], logs.step["x"]) == (3, 3, 1)
        assert set(spooled(0.5)[1]) == {"x"}


def test_spool_sees_inside_of_loops_around_it(ruled: Any) -> None:
    def fun(xs: Any) -> Any:
        return lax.map(lambda x: call(ruled, square, x), xs)

    out, logs = sawlog.spool(fun)(jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(out, [1, 4, 9])
    np.testing.assert_array_equal(logs["x"], [1, 2, 3])
    np.testing.assert_array_equal(logs["big"], [2, 3])


def test_spool_selects_inside(ruled: Any) -> None:
    fun = lambda x: call(ruled, square, x)
    assert set(sawlog.spool(fun, argnames="big")(3.0)[1]) == {"big"}
    assert set(sawlog.spool(fun, argnames="other")(3.0)[1]) == set()


def test_tap_sees_inside(ruled: Any) -> None:
    seen: list[Any] = []
    fun = lambda x: call(ruled, square, x) + 1
    assert sawlog.tap(fun, seen.append)(3.0) == 10
    assert seen == [{"x": 3}, {"big": 3}]
    assert seen[0].step["x"] == 1
    seen.clear()
    assert sawlog.tap(fun, seen.append)(0.5) == 1.25
    assert seen == [{"x": 0.5}]


def test_one_rule_for_several_primitives() -> None:
    one, two = new_call(), new_call()
    sawlog.register_rule(one, two)(calls_it)
    try:
        logs = sawlog.spool(lambda x: call(one, square, x) + call(two, square, x))(3.0)[1]
    finally:
        del _registry._rules[one], _registry._rules[two]
    np.testing.assert_array_equal(logs["x"], [3, 3])


@pytest.mark.parametrize("transform", [sawlog.spool, sawlog.tap], ids=["spool", "tap"])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["bare", "jit"])
def test_without_a_rule(primitive: Any, transform: Any, around: Any) -> None:
    fun = lambda x: call(primitive, square, x)
    with pytest.raises(UnsupportedPrimitiveError) as caught:
        transform(around(fun))(3.0)
    text = str(caught.value)
    for word in (f"'{primitive.name}'", line_of("the bind"), line_of("the log"), "register_rule"):
        assert word in text
    assert "Hint:" in text
    assert isinstance(caught.value, NotImplementedError)


def test_without_a_rule_and_without_a_wish(primitive: Any) -> None:
    """A rule is needed only for logs that are selected."""
    fun = lambda x: call(primitive, square, x)
    assert fun(3.0) == jax.jit(fun)(3.0) == 9
    assert sawlog.strip(fun)(3.0) == 9
    assert sawlog.spool(sawlog.strip(fun))(3.0) == (9, {})
    assert sawlog.spool(fun, argnames="other")(3.0) == (9, {})
    seen: list[Any] = []
    assert sawlog.tap(fun, seen.append, tags="other")(3.0) == 9
    assert seen == []


def test_without_logs_inside_no_rule_is_needed(primitive: Any) -> None:
    def fun(x: Any) -> Any:
        sawlog.log({"x": x})
        return call(primitive, jnp.sin, x)

    out, logs = sawlog.spool(fun)(3.0)
    assert out == jnp.sin(3.0)
    assert set(logs) == {"x"}
    assert set(_registry._rules).isdisjoint({primitive})
