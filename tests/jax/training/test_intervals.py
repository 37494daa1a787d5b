"""Intervals of few runs contain the value of many further runs of real training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog.influence._averages._average import average, t_quantile
from sawlog.jax._training.arguments import runner_of
from tests.jax.training import programs

FURTHER, RUNS, GROUPS = 200, 10, 8


def noisy(random, count):
    x = random.normal(size=(count, 2)).astype(np.float32)
    return x, (np.sin(2 * x[:, 0]) + 0.5 * random.standard_t(3, size=count)).astype(np.float32)


def labels(random, count):
    x = random.normal(size=(count, 2)).astype(np.float32)
    return x, np.where(random.random(count) < 0.2, -1, np.sign(x[:, 0])).astype(np.float32)


def init(key):
    first, second = jax.random.split(key)
    return {"a": jax.random.normal(first, (2, 16)), "b": jax.random.normal(second, (16,)) / 4}


def logistic(params, batch):
    hidden = jnp.maximum(batch[0] @ params["a"], 0)
    return jnp.logaddexp(0, -batch[1] * (hidden @ params["b"]))


TASKS = {
    "tanh, Adam, heavy tails": (noisy, programs.loss, optax.adam(0.05)),
    # With momentum, runs of so small a network are so rough that a mean of 200 is one of its tails.
    "ReLU, SGD, wrong labels": (labels, logistic, optax.sgd(0.1)),
}


@pytest.fixture(scope="module", params=TASKS)
def finished(request):
    """Parts, guesses and presence of all runs of a task."""
    draw, loss, optimizer = TASKS[request.param]
    random = np.random.default_rng(17)
    runner = runner_of(
        draw(random, 40),
        draw(random, 8),
        init=init,
        loss=loss,
        optimizer=optimizer,
        batch_size=5,
        epochs=10,
        guess=True,
    )
    done = [runner.run(run) for run in range(FURTHER + RUNS * GROUPS)]
    return (
        np.stack([each.parts for each in done]),
        np.stack([each.guesses for each in done]),
        np.stack([each.weights > 0 for each in done]),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["robust", "mean"])
def test_nine_of_ten_intervals_hold_the_value_of_two_hundred_further_runs(finished, kind):
    def averaged(begin, end):
        parts, guesses, present = (each[begin:end] for each in finished)
        return average(parts, kind, True, guesses, present)

    value, held = averaged(0, FURTHER).values, []
    for first in range(FURTHER, FURTHER + RUNS * GROUPS, RUNS):
        found = averaged(first, first + RUNS)
        held.append(np.abs(found.values - value) <= t_quantile(0.9, RUNS - 1) * found.errors)
    assert 0.85 < np.mean(held) < 0.96, np.mean(held)
