"""Checks, refusals and the precision of sums of JAX runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import ArgumentError
from tests.jax.capture_run.test_run import PARAMS, X, loss_fn, rows_of


@pytest.fixture
def run(tmp_path: Path) -> Any:
    run = sawlog.init("run", root=tmp_path)
    run.watch(loss_fn, PARAMS, X[:4], quiet=True)
    return run


@pytest.mark.parametrize("options", [{"views": 2}, {"scaler": object()}])
def test_options_of_pytorch_are_refused(run: Any, options: Any) -> None:
    with pytest.raises(ArgumentError, match="options for PyTorch models"), run([0, 1], **options):
        raise AssertionError


@pytest.mark.parametrize(
    ("examples", "places"), [(1, (0,)), (2, (0, 7)), (3, (0, 4, 7)), (8, tuple(range(8)))]
)
def test_examples_to_check_are_spread_over_the_batch(run: Any, examples: int, places: Any) -> None:
    checked = run.check(loss_fn, X, examples=examples)
    assert checked.ok
    assert checked.examples == places


@pytest.mark.parametrize("odd", [0, 4, 7])
def test_a_check_finds_the_example_that_differs(run: Any, odd: int) -> None:
    """The loss of one example depends on the size of the batch."""

    def mixed(params: Any, x: Any) -> Any:
        losses = loss_fn(params, x)
        return losses * jnp.where((x == X[odd]).all(-1), x.shape[0] / 8 + 1, 1.0)

    checked = run.check(mixed, X, examples=3)
    assert not checked.ok
    assert f"losses of the examples [{odd}]" in checked.loss


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_covariances_are_summed_in_the_precision_that_was_asked_for(
    tmp_path: Path, precision: str
) -> None:
    run = sawlog.init("run", root=tmp_path)
    run.setup(statistic=["covariance"], precision=precision)
    run.watch(loss_fn, PARAMS, X[:4], quiet=True)
    for part in np.split(np.arange(8), 2):
        run.record(part, PARAMS, X[part])
    rows = rows_of(run, range(8)).reshape(8, -1)
    found = run.statistics.covariance("grad/kernel")
    wanted = rows.astype(np.float64).T @ rows.astype(np.float64) / 8
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < (1e-12 if precision == "float64" else 1e-5)
    assert bool(error < 1e-12) is (precision == "float64")
