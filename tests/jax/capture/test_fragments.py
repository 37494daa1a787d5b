"""Every fragment of a model gives the rows of ``vmap(grad)``, in float64."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sawlog.jax
from sawlog.jax._capture.program import random_matrices
from tests.jax.capture.cases import CASES, Case
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients
from tests.thorough import THOROUGH, TURN


def test_there_are_enough_cases():
    assert len({each.name for each in CASES}) == len(CASES) >= 60


@pytest.mark.turns
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


def projects(each: Case) -> bool:
    """Whether rows are projected as well: by default those of every third fragment."""
    return THOROUGH or CASES.index(each) % 3 == TURN


def _warning(each: Case) -> Any:
    if each.slow:
        return pytest.warns(UserWarning, match="one example after the other")
    return contextlib.nullcontext()
