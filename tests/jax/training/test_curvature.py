"""Influence functions at the end of a run, against dense matrices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog.jax._training import curvature, runner
from sawlog.jax._training.arguments import runner_of
from sawlog.jax._training.curvature import DAMPINGS
from sawlog.jax._training.runner import FURTHER
from tests.jax.training import programs

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 3))
Y = X[:, 0] + RANDOM.normal(size=12)
OPTIONS = {
    "data": (X, Y),
    "queries": (X[:2] + 1, Y[:2]),
    "init": lambda key: {"w": jnp.zeros(3)},
    "loss": lambda params, batch: (batch[0] @ params["w"] - batch[1]) ** 2,
    "optimizer": optax.adam(0.05),
    "batch_size": 3,
    "epochs": 2,
    "guess": True,
}


@pytest.mark.parametrize(("most", "every"), [(12, 1), (11, 2), (7, 2), (5, 3)])
def test_the_guess_for_a_squared_error_is_gauss_newton(monkeypatch, most, every):
    """The curvature is that of every n-th example, so that they are no more than it may have."""
    monkeypatch.setattr(curvature, "ROWS", most)
    with jax.enable_x64(True):
        own = runner_of(**OPTIONS)
        found = own.run(0)
        start, course, plan = own.begin(0, found.weights)
        w = np.asarray(own.replay.train(start, course, plan)[0][0])
    chosen = X[::every]
    matrix = 2 * chosen.T @ chosen / len(chosen)
    slopes, asked = (2 * (x @ w - y)[:, None] * x for x, y in ((X, Y), OPTIONS["queries"]))
    assert found.guesses.shape == (3, 2, 12)
    for damping, guess in zip(DAMPINGS, found.guesses, strict=True):
        damped = matrix + damping * np.trace(matrix @ matrix) / np.trace(matrix) * np.eye(3)
        np.testing.assert_allclose(guess, asked @ np.linalg.solve(damped, slopes.T), rtol=1e-6)


def test_the_guess_for_many_queries_is_the_mean_of_three_trainings(monkeypatch):
    one = runner_of(**OPTIONS)
    several = [one.run(number) for number in (3, FURTHER + 6, FURTHER + 7)]
    assert (several[1].weights + several[2].weights == 1).all()
    monkeypatch.setattr(runner, "MANY_QUERIES", 2)
    found = one.run(3)
    np.testing.assert_array_equal(found.guesses, np.mean([each.guesses for each in several], 0))
    np.testing.assert_array_equal(found.parts, several[0].parts)
    given = dataclasses.replace(one, subset={3: several[0].weights}.__getitem__)
    np.testing.assert_array_equal(given.run(3).guesses, several[0].guesses)  # no other run is known


def sixes(params, batch):
    """A loss for batches of six examples only."""
    return ((batch[0] * params["w"]).sum(1).reshape(2, 3) - batch[1].reshape(2, 3)).ravel() ** 2


@pytest.mark.parametrize(
    "options",
    [
        {"guess": False},
        {"loss": sixes, "metric": OPTIONS["loss"]},
        {"loss": programs.dropped, "init": programs.init, "metric": programs.loss},  # takes a key
        {
            "step": programs.accumulated_step,
            "init": programs.accumulated_begin,
            "metric": lambda state, batch: programs.loss(state[0], batch),
            **dict.fromkeys(("loss", "optimizer")),
        },
    ],
    ids=["not wanted", "not for one example", "dropout", "step"],
)
def test_no_guess(options):
    data = {"data": programs.data(12), "queries": programs.data(2)} if "init" in options else {}
    assert runner_of(**{**OPTIONS, **data, **options}).run(0).guesses.shape == (0, 2, 12)
