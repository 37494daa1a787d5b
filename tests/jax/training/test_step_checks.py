"""How steps are differentiated, and whether examples with weight 0 change them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog.errors import ArgumentError
from sawlog.influence import through_training
from sawlog.jax._training.arguments import runner_of
from sawlog.jax._training.stops import chooses_gradients, with_stops_followed
from tests.jax.training import programs
from tests.jax.training.programs import ORDER


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (programs.loss, False),
        (programs.classes, False),  # the maximum that softmax stops cancels
        (programs.chased, True),
        (jax.jit(programs.chased), True),
        (programs.own_scale, True),
        (programs.clipped_inside, True),
        (lambda p, b: jax.nn.relu(programs.loss(p, b)), False),
    ],
    ids=["squares", "softmax", "target", "jitted", "scale", "clipped", "relu"],
)
def test_steps_are_differentiated_the_short_way_only_where_it_is_right(loss, expected):
    runner = runner_of(
        programs.data(),
        programs.data(2),
        init=programs.init,
        loss=loss,
        optimizer=optax.adam(0.05),
        batches=ORDER,
        subset=None,
    )
    runner.run(0)
    by_reverse = runner.replay._pull_back is runner.program.by_reverse
    assert by_reverse == expected


def test_a_metric_is_followed_where_it_stops_gradients():
    """What retraining changes in it does not depend on that."""

    def metric(params, batch):
        return jax.lax.stop_gradient(programs.loss(params, batch)) + 0 * params["b"].sum()

    def scored(metric):
        return through_training(
            programs.data(),
            programs.data(2),
            init=programs.init,
            loss=programs.loss,
            metric=metric,
            optimizer=optax.sgd(0.1),
            batches=ORDER,
            subset=None,
            runs=1,
            progress=False,
            check=False,
        ).values

    np.testing.assert_allclose(scored(metric), scored(programs.loss), rtol=1e-6)


INSIDE = {
    "plain": lambda x: jax.lax.stop_gradient(x) ** 2,
    "jit": jax.jit(lambda x: jax.lax.stop_gradient(x) ** 2),
    "cond": lambda x: jax.lax.cond(x > 0, lambda x: jax.lax.stop_gradient(x) ** 2, jnp.sin, x),
    "scan": lambda x: jax.lax.scan(lambda a, _: (jax.lax.stop_gradient(a) ** 2, None), x, None, 1)[
        0
    ],
    "checkpoint": jax.checkpoint(lambda x: jax.lax.stop_gradient(x) ** 2),
    "vmap": lambda x: jax.vmap(lambda x: jax.lax.stop_gradient(x) ** 2)(x[None])[0],
}


@pytest.mark.parametrize("name", INSIDE)
def test_stops_are_followed_wherever_they_are(name):
    function = INSIDE[name]
    assert chooses_gradients(function, 3.0 * jnp.ones(()))
    assert jax.grad(function)(3.0) == 0
    assert jax.grad(with_stops_followed(function))(3.0) == 6
    assert not chooses_gradients(jnp.sin, 3.0)


# -- weights of 0 ---------------------------------------------------------------------------------

X, Y = (each.astype(np.float32) for each in programs.data(12))


def normed_loss(params, batch):
    """Batch norm over all examples of the batch, those with weight 0 included."""
    hidden = batch[0] @ params["a"]
    hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-3)
    return (jnp.tanh(hidden) @ params["b"] - batch[1]) ** 2


def normed_step(state, batch, weights):
    slopes = jax.grad(lambda p: programs.weighted(normed_loss(p, batch), weights))(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, slopes)


def counting_step(state, batch, weights):
    """Keeps the sum of all inputs beside the parameters, which do not depend on it."""
    slopes = jax.grad(lambda p: programs.weighted(programs.loss(p, batch), weights))(state["p"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["p"], slopes)
    return {"p": params, "seen": state["seen"] + batch[0].sum()}


BY_LOSS = {"loss": normed_loss, "optimizer": optax.sgd(0.1), "metric": programs.loss}
BY_STEP = {"step": normed_step, "metric": programs.loss}
RAGGED = {"subset": None, "batch_size": None, "epochs": None, "batches": [[0, 1, 2], [3, 4]]}
EQUAL = {"subset": None, "batch_size": None, "epochs": None, "batches": [[0, 1], [3, 4]]}


def scored(**options):
    given = {"init": programs.init, "batch_size": 3, "epochs": 2, "runs": 2, **options}
    return through_training((X, Y), (X[:2], Y[:2]), progress=False, check=False, **given)


@pytest.mark.parametrize(
    "options",
    [BY_LOSS, BY_STEP, {**BY_STEP, "loop": "python"}, {**BY_STEP, **RAGGED}],
    ids=["loss", "step", "python", "empty places"],
)
def test_examples_with_weight_0_that_change_a_step_are_refused(options):
    with pytest.raises(ArgumentError, match=r"weight 0 change the state .*\['a'\].*Hint: stat"):
        scored(**options)


@pytest.mark.parametrize(
    "options",
    [
        {**BY_STEP, **EQUAL},
        {**BY_STEP, "subset": None},
        {
            "step": counting_step,
            "init": lambda key: {"p": programs.init(key), "seen": jnp.zeros(())},
            "metric": lambda state, batch: programs.loss(state["p"], batch),
        },
    ],
    ids=["batches", "all data", "nothing depends on it"],
)
def test_what_does_not_depend_on_them_is_not_refused(options):
    assert np.isfinite(scored(**options).values).all()
