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


@pytest.mark.turns(2)
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


def test_strip_removes_logs_of_functions_traced_before() -> None:
    """A function that `closure_convert` returned has its logs already."""

    def program(x):
        fun, constants = jax.closure_convert(log_and_double, x)
        y = sawlog.strip(lambda x: fun(x, *constants))(x)
        sawlog.log({"after": y})
        return y

    def log_and_double(x):
        sawlog.log({"inside": x})
        return jax.lax.scan(lambda c, _: (c, sawlog.log({"loop": c})), 2 * x, None, length=2)[0]

    for fun in (program, jax.jit(program), jax.grad(program)):
        out, logs = sawlog.spool(fun)(3.0)
        assert out == fun(3.0)
        assert logs.to_numpy() == {"after": 6.0}


def test_strip_of_a_function_that_returns_a_function() -> None:
    def program(x):
        back = sawlog.strip(lambda x: jax.vjp(lambda x: sawlog.log_cotangent("dx", x) ** 2, x))(x)[
            1
        ]
        plain, count = sawlog.strip(lambda x: (x + 1, 3))(x)
        assert type(count) is int
        return back(plain)[0]

    out, logs = sawlog.spool(program)(3.0)
    assert out == 24
    assert not logs
