"""Primitives of users that hold Python functions, or hide the effects of programs inside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir

import sawlog
import sawlog.errors

THREE = jnp.float32(3)


def double(x):
    """Twice x, and logs it."""
    sawlog.log("x", x)
    return x * 2


# --- Any other primitive --------------------------------------------------------------------------

call_p = Primitive("call_later")
call_p.def_impl(lambda x, fun: jax.jit(fun)(x))
call_p.def_abstract_eval(lambda x, fun: x)
mlir.register_lowering(
    call_p, mlir.lower_fun(lambda x, fun: fun(x), multiple_results=False), cacheable=False
)


class Holder:
    """A callable object with a function in it."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def __call__(self, x: Any) -> Any:
        return self.fun(x)


HELD = {
    "function": double,
    "object": Holder(double),
    "partial": functools.partial(lambda _, x: double(x), 1),
    "method": Holder(double).__call__,
}


@pytest.mark.turns
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("way", ["spool", "jit", "tap", "reduce", "buffer", "interval", "scan"])
def test_other_primitives_are_refused(held: str, way: str) -> None:
    def fun(x):
        return call_p.bind(x, fun=HELD[held]) + 1

    def loop(x):
        return lax.scan(lambda c, _: (jax.jit(fun)(c), None), x, None, length=2)[0]

    wrapped = {
        "spool": lambda: sawlog.spool(fun),
        "jit": lambda: jax.jit(sawlog.spool(fun)),
        "tap": lambda: sawlog.tap(fun, lambda logs: None),
        "reduce": lambda: sawlog.spool(fun, reduce="mean"),
        "buffer": lambda: sawlog.tap(fun, lambda logs: None, buffer=2),
        "interval": lambda: sawlog.tap(fun, lambda logs: None, interval=2),
        "scan": lambda: sawlog.spool(loop),
    }[way]()
    with pytest.raises(sawlog.errors.UnsupportedPrimitiveError) as caught:
        wrapped(THREE)
    text = str(caught.value)
    assert "'x'" in text
    assert "test_opaque_primitives.py" in text
    assert ("'scan'" if way == "scan" else "'call_later'") in text
    assert "Hint:" in text


@pytest.mark.parametrize("held", HELD)
def test_other_primitives_run_where_nothing_is_lost(held: str) -> None:
    def fun(x):
        return call_p.bind(x, fun=HELD[held]) + 1

    assert jax.jit(fun)(THREE) == 7
    assert sawlog.spool(fun, argnames="other")(THREE)[0] == 7
    assert sawlog.spool(lambda x: call_p.bind(x, fun=sawlog.strip(HELD[held])))(THREE)[0] == 6
    assert jax.jit(fun)(THREE) == 7


def test_a_hidden_jaxpr_is_refused() -> None:
    """A log that was traced inside `spool`, and evaluated when the program is lowered."""

    class Hidden:
        """Not a function, and no parameter that is searched."""

        __slots__ = ("run",)

    def fun(x):
        hidden = Hidden()
        hidden.run = jax.make_jaxpr(double)(x)
        return later_p.bind(x, hidden=hidden)

    later_p = Primitive("evaluate_later")
    later_p.def_abstract_eval(lambda x, hidden: x)

    def evaluate(x, hidden):
        return jax.core.eval_jaxpr(hidden.run.jaxpr, hidden.run.consts, x)[0]

    mlir.register_lowering(later_p, mlir.lower_fun(evaluate, multiple_results=False))
    with pytest.raises(sawlog.errors.LogPlacementError, match="hid from sawlog"):
        sawlog.spool(fun)(THREE)


# --- primitives that do not show the effects inside -----------------------------------------------


def pallas(x):
    def kernel(a, out):
        out[...] = double(a[...])

    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(jnp.full(2, x))


def pallas_index_map(x):
    def kernel(a, out):
        out[...] = a[...]

    specs = [pl.BlockSpec((1,), lambda i: double(i) // 2)]
    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=specs,
        out_specs=pl.BlockSpec((1,), lambda i: i),
        out_shape=jax.ShapeDtypeStruct((2,), jnp.float32),
        interpret=True,
    )(jnp.full(2, x))


def partitioned(x):
    fun = custom_partitioning(double)
    fun.def_partition(
        infer_sharding_from_operands=lambda *_: None, partition=lambda *_: None, sharding_rule="->"
    )
    return fun(x)


class InAMapping:
    """A primitive with its program in a dict, which reports no effects."""

    primitive = Primitive("in_a_mapping")
    primitive.def_abstract_eval(lambda x, programs: x)

    @classmethod
    def call(cls, x):
        class Programs(dict):
            __hash__ = object.__hash__

        return cls.primitive.bind(x, programs=Programs(own=jax.make_jaxpr(double)(x)))


HIDING: dict[str, Callable[..., Any]] = {
    "pallas_call": pallas,
    "index map": pallas_index_map,
    "reduce": lambda x: lax.reduce(jnp.full(2, x), 0.0, lambda a, b: double(a) * b, (0,)),
    "reduce_window": lambda x: lax.reduce_window(
        jnp.full(4, x), 0.0, lambda a, b: double(a) * b, (2,), (1,), "VALID"
    ),
    "scatter": lambda x: jnp.full(2, x).at[1].apply(double),
    "custom_partitioning": partitioned,
    "of a user": InAMapping.call,
}
USES: dict[str, Callable[..., Any]] = {
    "used": lambda fun: lambda x: jnp.sum(fun(x)),
    "unused": lambda fun: lambda x: (fun(x), x)[1],
    "unused in a differentiated scan": lambda fun: jax.grad(
        lambda x: lax.scan(lambda c, _: (fun(THREE), (c * 2, None))[1], x, None, length=2)[0]
    ),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", HIDING)
def test_logs_in_primitives_that_hide_effects_are_refused(name: str, use: str) -> None:
    fun = USES[use](HIDING[name])
    for transform in (sawlog.spool, lambda fun: sawlog.tap(fun, lambda logs: None)):
        with pytest.raises(sawlog.errors.UnsupportedPrimitiveError, match=r"log inside.*Hint:"):
            transform(fun)(THREE)


def test_a_differentiated_reduction_is_refused() -> None:
    """Its derivative runs the function in another order than the reduction."""
    with pytest.raises(
        sawlog.errors.UnsupportedPrimitiveError, match=r"'reduce'.*test_opaque_primitives.py"
    ):
        sawlog.spool(jax.grad(HIDING["reduce"]))(THREE)


@pytest.mark.parametrize("name", ["pallas_call", "index map"])
def test_such_logs_can_be_dropped(name: str) -> None:
    for fun in (sawlog.strip(HIDING[name]), HIDING[name]):
        out, logs = sawlog.spool(fun, argnames="y")(THREE)
        assert not logs
        np.testing.assert_array_equal(out, HIDING[name](THREE))


def test_every_lane_logs_what_is_the_same_in_all() -> None:
    """Though JAX calls such a function once for all lanes."""
    mapped = jax.custom_batching.custom_vmap(double)
    mapped.def_vmap(lambda size, batched, x: (x * 2, batched[0]))
    for fun in (lax.composite(double, name="sawlog.same"), mapped):

        def lanes(x, fun=fun):
            return jnp.sum(fun(THREE)) + x

        out, logs = sawlog.spool(jax.vmap(jax.vmap(lanes)))(jnp.zeros((2, 4)))
        np.testing.assert_array_equal(out, np.full((2, 4), 6.0))
        np.testing.assert_array_equal(logs["x"], np.full((2, 4), 3.0))
