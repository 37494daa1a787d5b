"""Operators of lineax that close over arrays, in solvers that evaluate them once, as a matrix.

Implicit differentiation solves such a system for the derivative.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog

lx = pytest.importorskip("lineax")
optimistix = pytest.importorskip("optimistix")
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


DERIVATIVES = {
    "grad": jax.grad,
    "jit": lambda f: jax.jit(jax.grad(jax.jit(f))),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.float32(1),))[1],
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("solver", [lx.LU(), lx.GMRES(1e-6, 1e-6)], ids=["LU", "GMRES"])
def test_the_operator_is_differentiated(solver: Any, derivative: str) -> None:
    """The derivative evaluates the operator at the solution, which is not logged."""

    def fun(scale):
        def apply(v):
            sawlog.log({"v": v})
            return scale * jnp.array(MATRIX) @ v

        operator = lx.FunctionLinearOperator(apply, jax.eval_shape(lambda: B))
        return lx.linear_solve(operator, B, solver).value.sum()

    forward = sawlog.spool(fun, capacity=32)(jnp.float32(2))[1]["v"]
    slope, logs = sawlog.spool(DERIVATIVES[derivative](fun), capacity=32)(jnp.float32(2))
    np.testing.assert_allclose(slope, -np.linalg.solve(MATRIX, B).sum() / 4, rtol=1e-4)
    np.testing.assert_allclose(logs["v"], forward, rtol=1e-6)


# --- implicit differentiation, which solves for a tangent -----------------------------------------


def cube_root(a):
    """The root of y**3 + y - a; the function logs where it is evaluated."""

    def residual(y, a):
        sawlog.log({"y": y})
        return y**3 + y - a

    solver = optimistix.Newton(rtol=1e-6, atol=1e-6)
    return optimistix.root_find(residual, solver, jnp.float32(1), a).value


@pytest.mark.turns(3)
@pytest.mark.parametrize("way", ["grad", "jit", "jvp"])
def test_implicit_differentiation(way: str) -> None:
    """The logs of the forward pass, and then some at the solution."""
    target = jnp.float32(2)
    root, logs = sawlog.spool(cube_root, capacity=32)(target)
    forward = np.asarray(logs["y"])
    np.testing.assert_allclose(root**3 + root, 2, rtol=1e-5)
    differentiated = {
        "grad": jax.grad(cube_root),
        "jit": jax.jit(jax.grad(jax.jit(cube_root))),
        "jvp": lambda a: jax.jvp(cube_root, (a,), (jnp.float32(1),))[1],
    }[way]
    slope, logs = sawlog.spool(differentiated, capacity=32)(target)
    np.testing.assert_allclose(slope, 1 / (3 * root**2 + 1), rtol=1e-4)
    found = np.asarray(logs["y"])
    np.testing.assert_array_equal(found[: len(forward)], forward)
    np.testing.assert_allclose(found[len(forward) :], root, rtol=1e-6)
    assert 1 <= len(found) - len(forward) <= 6


@pytest.mark.thorough
def test_implicit_differentiation_of_lanes() -> None:
    targets = jnp.array([1.0, 2.0, 30.0])
    alone = [len(sawlog.spool(jax.grad(cube_root), capacity=32)(t)[1]["y"]) for t in targets]
    for fun in (jax.vmap(jax.grad(cube_root)), jax.grad(lambda t: jax.vmap(cube_root)(t).sum())):
        slopes, logs = sawlog.spool(fun, capacity=64)(targets)
        np.testing.assert_allclose(slopes, jax.vmap(jax.grad(cube_root))(targets), rtol=1e-4)
        assert np.asarray(logs.mask["y"]).sum(axis=0).tolist() == alone
