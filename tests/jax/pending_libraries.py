"""What is right for programs of equinox and lineax that sawlog does not get right yet.

Not collected by default. `pytest tests/jax/pending_libraries.py` runs them.
"""

from __future__ import annotations

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import lineax
import pytest

import sawlog
import sawlog.errors

PENDING = {
    "lowering": "functions that are traced only when a primitive is lowered",
}

# --- functions that are traced only when a primitive is lowered ----------------------------------

MATRIX, TARGET = jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.array([1.0, 2.0])


def refused_or(fun, check, *args):
    """Either the logs are right, or an error says that they cannot be had; never nothing."""
    try:
        _, logs = sawlog.spool(fun, capacity=16)(*args)
    except sawlog.errors.UnsupportedPrimitiveError:
        return
    check(logs)


def test_noinline() -> None:
    def inner(x):
        sawlog.log("x", x)
        return x * 2

    def check(logs):
        assert logs["x"] == 3

    refused_or(lambda x: eqxi.noinline(inner)(x) + 1, check, jnp.float32(3))


@pytest.mark.parametrize("solver", [lineax.LU(), lineax.CG(1e-5, 1e-5), lineax.GMRES(1e-5, 1e-5)])
def test_lineax_function_operator(solver) -> None:
    def fun(matrix, target):
        def multiply(vector):
            sawlog.log("vector", vector)
            return matrix @ vector

        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        tags = lineax.positive_semidefinite_tag
        operator = lineax.FunctionLinearOperator(multiply, shape, tags)
        return lineax.linear_solve(operator, target, solver).value

    def check(logs):
        assert logs["vector"].ndim == 2
        assert len(logs["vector"])

    refused_or(fun, check, MATRIX, TARGET)
