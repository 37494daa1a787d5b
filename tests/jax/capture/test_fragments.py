"""Every fragment of a model gives the rows of ``vmap(grad)``, in float64."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog.jax
from sawlog.factored import gradient
from sawlog.jax._capture.program import random_matrices
from tests.jax.capture.cases import CASES, Case
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients
from tests.thorough import THOROUGH, TURN


def test_there_are_enough_cases():
    assert len({each.name for each in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_rows_are_those_of_vmap_grad(each: Case):
    with jax.enable_x64(True):
        params, batch = each.make()
        whole = sawlog.jax.capture(each.loss, what=("grad", "pairs"))
        with _warning(each):
            plan = whole.plan(params, batch)
        matrices = random_matrices(plan.blocks, 2)
        small = sawlog.jax.capture(each.loss, projection=matrices)
        with _warning(each) if projects(each) else contextlib.nullcontext():  # once each
            captured, projected, wanted = jax.jit(
                lambda params, batch: (
                    whole(params, batch),
                    small(params, batch).grads if projects(each) else None,
                    gradients(each.loss, params, batch),
                )
            )(params, batch)
        assert captured.losses.dtype == jnp.float64
        assert_equal(captured.grads, wanted)
        assert_pairs(captured, plan, projected, matrices)


def test_a_lookup_of_what_is_not_in_the_table():
    """Ids below zero count from nowhere here; neither they nor ids behind the end have a row."""

    def loss(p, ids):
        found = p["e"].at[ids].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
        return jnp.sin(found + 1.0).sum((1, 2))

    params = {"e": jnp.arange(12.0).reshape(4, 3)}
    ids = jnp.array([[0, -1, 3], [-4, 4, 1], [3, 3, -5]])
    captured = sawlog.jax.capture(loss, what=("grad", "pairs"))(params, ids)
    wanted = np.zeros((3, 4, 3))
    for example, row in ((0, 0), (0, 3), (1, 1), (2, 3), (2, 3)):
        wanted[example, row] += np.cos(np.arange(3.0) + 3 * row + 1)
    np.testing.assert_allclose(captured.grads["e"], wanted, atol=1e-5)
    np.testing.assert_allclose(sum(map(gradient, captured.pairs["e"])), wanted, atol=1e-5)


def test_a_lookup_that_stays_in_the_table():
    """Ids behind the ends are those of the first and the last row."""

    def loss(p, ids):
        return jnp.sin(p["e"].at[ids].get(mode="clip")).sum((1, 2))

    params = {"e": jnp.arange(12.0).reshape(4, 3)}
    ids = jnp.array([[0, 9, 3], [2, 4, 1], [3, 7, 3]])
    captured = sawlog.jax.capture(loss, what=("grad", "pairs"))(params, ids)
    counts = np.array([[1, 0, 0, 2], [0, 1, 1, 1], [0, 0, 0, 3]])
    wanted = counts[:, :, None] * np.cos(np.arange(12.0).reshape(4, 3))
    np.testing.assert_allclose(captured.grads["e"], wanted, atol=1e-5)
    np.testing.assert_allclose(sum(map(gradient, captured.pairs["e"])), wanted, atol=1e-5)


def test_a_dimension_of_one_is_not_broadcast():
    """So the uses keep their factors."""

    def loss(p, x):
        w = lax.broadcast_in_dim(p["w"], (1, 3, 4), (1, 2))
        return jnp.einsum("bd,xdo->bxo", x, w).sum((1, 2))

    params, batch = {"w": jnp.ones((3, 4))}, jnp.ones((2, 3))
    (layout,) = sawlog.jax.capture(loss).plan(params, batch).layouts
    assert layout.factored


def projects(each: Case) -> bool:
    """Whether rows are projected as well: by default those of every third fragment."""
    return THOROUGH or CASES.index(each) % 3 == TURN


def _warning(each: Case) -> Any:
    if each.slow:
        return pytest.warns(UserWarning, match="one example after the other")
    return contextlib.nullcontext()
