"""Operators of lineax that close over arrays, in solvers that evaluate them once, as a matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog

lx = pytest.importorskip("lineax")
MATRIX = np.array([[3.0, 1.0], [1.0, 2.0]], np.float32)
B = jnp.array([1.0, 2.0])
SOLVERS = {"LU": lx.LU, "QR": lx.QR, "SVD": lx.SVD, "auto": lx.AutoLinearSolver}


def solve(solver: str) -> Any:
    matrix = jnp.array(MATRIX)  # closed over

    def apply(v):
        sawlog.log({"v": v})
        return matrix @ v

    def fun(b):
        operator = lx.FunctionLinearOperator(apply, jax.eval_shape(lambda: b))
        given = {"well_posed": True} if solver == "auto" else {}
        return lx.linear_solve(operator, b, SOLVERS[solver](**given)).value

    return fun


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_columns_are_logged_once(solver: str) -> None:
    fun = solve(solver)
    value, logs = sawlog.spool(fun)(B)
    np.testing.assert_allclose(value, np.linalg.solve(MATRIX, B), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(logs["v"], np.eye(2))
    slope, logs = sawlog.spool(jax.grad(lambda b: fun(b) @ jnp.array([1.0, 3.0])))(B)
    np.testing.assert_allclose(slope, np.linalg.solve(MATRIX.T, [1.0, 3.0]), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(logs["v"], np.eye(2))


def test_mapped_and_tapped() -> None:
    fun, seen = solve("LU"), []
    values, logs = sawlog.spool(jax.vmap(fun))(jnp.stack([B, 2 * B]))
    expected = np.linalg.solve(MATRIX, B)
    np.testing.assert_allclose(values, [expected, 2 * expected], rtol=1e-4)
    assert logs["v"].size == 4 * values.shape[0]
    np.testing.assert_allclose(sawlog.tap(fun, seen.append)(B), expected, rtol=1e-4)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen[0]["v"], np.eye(2))
    np.testing.assert_allclose(sawlog.spool(fun, argnames="w")(B)[0], expected, rtol=1e-4)
