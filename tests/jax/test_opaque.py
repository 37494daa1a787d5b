"""Functions that JAX traces only when a program is lowered: logs are seen or raise an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
import lineax
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


def noinlined(x):
    """Calls a function that is compiled on its own."""
    return eqxi.noinline(double)(x) + 1


# --- Equinox: noinline ----------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "plain": (noinlined, THREE, 3),
    "jit": (jax.jit(noinlined), THREE, 3),
    "vmap": (jax.vmap(noinlined), jnp.arange(3.0), [0, 1, 2]),
    "grad": (jax.grad(noinlined), THREE, 3),
    "checkpoint": (jax.grad(jax.checkpoint(noinlined)), THREE, 3),
    "vmap of grad": (jax.vmap(jax.grad(noinlined)), jnp.arange(3.0), [0, 1, 2]),
    "scan": (
        lambda x: lax.scan(lambda c, _: (noinlined(c), None), x, None, length=3)[0],
        THREE,
        [3, 7, 15],
    ),
    "grad of scan": (
        jax.grad(lambda x: lax.scan(lambda c, _: (noinlined(c), None), x, None, length=3)[0]),
        THREE,
        [3, 7, 15],
    ),
}


@pytest.mark.turns
@pytest.mark.parametrize("name", WAYS)
def test_noinline(name: str) -> None:
    fun, x, expected = WAYS[name]
    out, logs = sawlog.spool(fun)(x)
    np.testing.assert_allclose(logs["x"], expected)
    np.testing.assert_allclose(out, fun(x))
    seen: list = []
    np.testing.assert_allclose(sawlog.tap(fun, seen.append)(x), out)
    shown = np.stack([logs["x"] for logs in seen])
    np.testing.assert_allclose(shown.reshape(np.shape(expected)), expected)


def test_noinline_differentiated_from_outside() -> None:
    slope, logs = jax.grad(sawlog.spool(noinlined), has_aux=True)(THREE)
    assert slope == 2
    assert logs["x"] == 3
    _, logs = jax.vmap(sawlog.spool(noinlined))(jnp.arange(3.0))
    np.testing.assert_allclose(logs["x"], [0, 1, 2])


def test_noinline_in_a_branch_that_some_lanes_take() -> None:
    fun = jax.vmap(lambda x: lax.cond(x > 1, noinlined, lambda x: x, x))
    _, logs = sawlog.spool(fun)(jnp.arange(3.0))
    np.testing.assert_array_equal(logs.mask["x"], [False, False, True])


def test_noinline_is_left_alone_where_nobody_wants_its_logs() -> None:
    for fun in (
        sawlog.spool(noinlined, argnames="other"),
        sawlog.spool(sawlog.strip(noinlined)),
    ):
        out, logs = fun(THREE)
        assert out == 7
        assert not logs
    assert jax.jit(noinlined)(THREE) == 7


# --- lineax: an operator that is a function -------------------------------------------------------

MATRIX, TARGET = jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.array([1.0, 2.0])
SOLVERS = {
    "cg": lineax.CG(rtol=1e-5, atol=1e-5),
    "gmres": lineax.GMRES(rtol=1e-5, atol=1e-5),
}


def solve(target, matrix=MATRIX, solver=SOLVERS["cg"], log=sawlog.log):
    """The solution, with a log for each product with the matrix while it is solved."""

    def multiply(vector):
        log("vector", vector)
        return matrix @ vector

    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    operator = lineax.FunctionLinearOperator(multiply, shape, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, target, solver).value


def products(**options: Any) -> np.ndarray:
    """What JAX's own callback sees of the same program."""
    seen: list[np.ndarray] = []

    def log(name, vector):
        del name
        jax.debug.callback(lambda v: seen.append(np.array(v)), vector)  # cannot be ordered here

    jax.block_until_ready(jax.jit(lambda t: solve(t, log=log, **options))(TARGET))
    jax.effects_barrier()
    return in_any_order(seen)


def in_any_order(vectors: Any) -> np.ndarray:
    """Vectors, sorted."""
    return np.array(sorted(np.asarray(vectors).tolist()))


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", SOLVERS)
def test_lineax(name: str) -> None:
    expected = products(solver=SOLVERS[name])
    assert len(expected) > 1
    fun = functools.partial(solve, solver=SOLVERS[name])
    out, logs = sawlog.spool(fun, capacity=64)(TARGET)
    np.testing.assert_allclose(out, np.linalg.solve(MATRIX, TARGET), rtol=1e-4)
    np.testing.assert_allclose(in_any_order(logs["vector"]), expected, atol=1e-6)


def test_lineax_differentiated() -> None:
    """The forward pass is logged once; the solves for derivatives are not logged."""
    expected, inverse = products(), np.linalg.inv(MATRIX)
    slope, logs = sawlog.spool(jax.grad(lambda t: solve(t).sum()), capacity=64)(TARGET)
    np.testing.assert_allclose(slope, inverse.sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(in_any_order(logs["vector"]), expected, atol=1e-6)

    def outside(target):
        out, logs = sawlog.spool(solve, capacity=64)(target)
        return out.sum(), logs

    slope, logs = jax.grad(outside, has_aux=True)(TARGET)
    np.testing.assert_allclose(slope, inverse.sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(in_any_order(logs["vector"]), expected, atol=1e-6)


def test_lineax_mapped() -> None:
    targets = jnp.stack([TARGET, 3 * TARGET])
    expected = [in_any_order(sawlog.spool(solve, capacity=64)(t)[1]["vector"]) for t in targets]
    out, logs = sawlog.spool(jax.vmap(solve), capacity=64)(targets)
    np.testing.assert_allclose(out, np.linalg.solve(MATRIX, targets.T).T, rtol=1e-4)
    lanes, mask = np.moveaxis(logs["vector"], 1, 0), np.ones(logs["vector"].shape[:2], bool)
    mask = np.asarray(logs.mask.get("vector", mask)).T
    for lane, here, vectors in zip(lanes, mask, expected, strict=True):
        np.testing.assert_allclose(in_any_order(lane[here]), vectors, atol=1e-5)
    _, logs = jax.vmap(sawlog.spool(solve, capacity=64))(targets)
    for i, vectors in enumerate(expected):
        here = np.asarray(logs.mask["vector"][i])
        np.testing.assert_allclose(in_any_order(logs["vector"][i][here]), vectors, atol=1e-5)


def test_lineax_without_its_logs() -> None:
    for fun in (sawlog.spool(solve, argnames="other"), sawlog.spool(sawlog.strip(solve))):
        out, logs = fun(TARGET)
        np.testing.assert_allclose(out, np.linalg.solve(MATRIX, TARGET), rtol=1e-4)
        assert not logs


# --- custom_root, which is an object in newer JAX -------------------------------------------------


def root(a):
    """The root of x - a, found in one step; the function and the tangent solver log."""

    def residual(x):
        sawlog.log({"residual": x})
        return x - a

    def solve_tangent(g, y):
        sawlog.log({"tangent": y})
        return y / g(1.0)

    return lax.custom_root(residual, 0.0, lambda g, x: x - g(x), solve_tangent)


def test_custom_root() -> None:
    _, logs = sawlog.spool(root)(2.0)
    assert logs["residual"] == 0
    assert list(logs) == ["residual"]
    _, logs = sawlog.spool(lambda a: jax.jvp(root, (a,), (1.0,)))(2.0)
    np.testing.assert_array_equal(logs["residual"], [0, 2, 2])
    assert logs["tangent"] == -1
    slope, logs = sawlog.spool(jax.grad(root))(2.0)
    assert slope == 1
    np.testing.assert_array_equal(logs["residual"], [0, 2, 2])
    _, logs = sawlog.spool(jax.vmap(jax.grad(root)))(jnp.array([2.0, 3.0]))
    np.testing.assert_array_equal(logs["residual"], [[0, 0], [2, 3], [2, 3]])
    slope, logs = jax.grad(sawlog.spool(root), has_aux=True)(2.0)
    assert (slope, logs["residual"]) == (1, 0)


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
    assert "test_opaque.py" in text
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


@pytest.mark.turns(4)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", HIDING)
def test_logs_in_primitives_that_hide_effects_are_refused(name: str, use: str) -> None:
    fun = USES[use](HIDING[name])
    for transform in (sawlog.spool, lambda fun: sawlog.tap(fun, lambda logs: None)):
        with pytest.raises(sawlog.errors.UnsupportedPrimitiveError, match=r"log inside.*Hint:"):
            transform(fun)(THREE)


def test_a_differentiated_reduction_is_refused() -> None:
    """Its derivative runs the function in another order than the reduction."""
    with pytest.raises(sawlog.errors.UnsupportedPrimitiveError, match=r"'reduce'.*test_opaque.py"):
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
