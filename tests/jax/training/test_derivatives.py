"""Scores equal central differences of training again by a plain loop, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog.influence import through_training
from sawlog.jax._training.run_data import run_keys
from tests.jax.training import programs
from tests.jax.training.programs import CASES, COUNT, ORDER, WEIGHTS

QUIET = {"runs": 1, "progress": False, "check": False}


def differences(case, weights=WEIGHTS, order=ORDER, seed=0):
    """Minus ``n`` times the central differences of retraining, ``[q, n]``."""
    step = case.difference
    examples, asked = programs.data(), programs.data(2, seed=1)
    begin, _, own = run_keys(seed, 0)
    keys = jax.random.split(own, len(order))
    moved = np.concatenate([weights + step * np.eye(COUNT), weights - step * np.eye(COUNT)])
    ends = case.ends(begin, keys, jnp.asarray(moved), order, examples, asked)
    return -COUNT * np.asarray((ends[:COUNT] - ends[COUNT:]) / (2 * step)).T


def scored(case, order=ORDER, weights=WEIGHTS, **options):
    return through_training(
        programs.data(),
        programs.data(2, seed=1),
        **{"batches": order, "subset": weights[None], **QUIET, **case.options, **options},
    )


#: Their parts are in other cases.
SLOW = {"adamw", "momentum, clipping, weight decay"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.thorough][: each in SLOW]) for each in CASES]
)
def test_scores_equal_central_differences(name):
    with jax.enable_x64(True):
        expected = differences(CASES[name])
        found = scored(CASES[name]).values
    assert np.abs(expected).max() > 1e-3
    rtol = CASES[name].rtol
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol / 10 * np.abs(expected).max())


def test_a_parameter_without_gradients_has_no_nan_under_adam():
    """The first input is always 0: Adam's second moment of its weights stays 0."""
    x, y = programs.data()
    x[:, 0] = 0
    found = through_training(
        (x, y),
        (x, y),
        init=programs.init,
        loss=programs.loss,
        optimizer=optax.adam(0.05),
        batches=ORDER,
        subset=None,
        **QUIET,
    )
    assert np.isfinite(found.values).all()
    assert np.abs(found.values).max() > 0


@pytest.mark.parametrize("wrap", ["MultiSteps", "apply_if_finite"])
def test_a_parameter_without_gradients_under_adam_in_a_branch(wrap):
    """Accumulation calls Adam in a branch of ``cond``, where its root has no derivative at 0."""
    x, y = programs.data()
    x[:, 0] = 0
    adam, same = optax.adam(0.05), optax.identity()
    # Branches that do the same as Adam alone, step by step.
    wrapped = {
        "MultiSteps": lambda inner: optax.MultiSteps(inner, 1),
        "apply_if_finite": lambda inner: optax.apply_if_finite(inner, 3),
    }[wrap]

    def scored(optimizer):
        return through_training(
            (x, y),
            (x, y),
            init=programs.init,
            loss=programs.loss,
            optimizer=optimizer,
            batches=ORDER,
            subset=None,
            **QUIET,
        ).values

    found = scored(wrapped(optax.chain(adam, same)))
    assert np.abs(found).max() > 1e-3
    np.testing.assert_allclose(found, scored(adam), rtol=1e-4, atol=1e-5)


def test_equal_for_each_memory_and_batch_of_queries(tmp_path):
    case, order = CASES["adam"], np.concatenate([ORDER] * 3)
    with jax.enable_x64(True):
        expected = scored(case, order).values
        for options in (
            {"memory": 900, "query_batch": 1},  # four states
            {"memory": "sqrt"},
            {"memory": "log", "spill": tmp_path, "loop": "python"},
        ):
            found = scored(case, order, **options).values
            np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=str(options))
    assert not list(tmp_path.iterdir())


def test_empty_places_and_batches_of_different_sizes():
    case, ragged = CASES["sgd with a schedule"], [[0, 1, 2], [3, 4], [5]]
    padded = np.array([[0, 1, 2], [3, 4, -1], [-1, -1, 5]])
    with jax.enable_x64(True):
        weights = np.ones(COUNT)
        expected = scored(case, padded, weights).values
        np.testing.assert_allclose(scored(case, ragged, weights).values, expected, rtol=1e-12)
        by_hand = differences(case, weights, [np.array(rows) for rows in ragged])
    np.testing.assert_allclose(expected, by_hand, rtol=1e-5, atol=1e-6)


def test_metrics_without_queries_and_any_update_rule():
    x, y = programs.data()

    def update(grads, params):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    options = {"init": programs.init, "loss": programs.loss, "batches": ORDER, "subset": None}
    plain = through_training((x, y), (x, y), optimizer=optax.sgd(0.1), **options, **QUIET)
    own = through_training(
        (x, y),
        optimizer=update,
        metric=lambda params: programs.loss(params, (x, y))[:2] * 2,
        **options,
        **QUIET,
    )
    np.testing.assert_allclose(own.values, 2 * plain.values[:2], rtol=1e-4, atol=1e-6)


def test_half_precision_inside_of_the_loss():
    x, y = programs.data()

    def halved(params, batch):
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (params, batch[0]))
        return (programs.outputs(*low).astype(jnp.float32) - batch[1]) ** 2

    def scores(loss):
        return through_training(
            (x, y),
            (x, y),
            init=programs.init,
            loss=loss,
            metric=programs.loss,
            optimizer=optax.sgd(0.1),
            batches=ORDER,
            subset=None,
            **QUIET,
        ).values.ravel()

    full, half = scores(programs.loss), scores(halved)
    assert full @ half / np.linalg.norm(full) / np.linalg.norm(half) > 0.99


@pytest.mark.thorough
def test_models_of_equinox_and_flax():
    import equinox
    import flax.linen

    x, y = (a.astype(np.float32) for a in programs.data())
    net = flax.linen.Dense(1)
    options = {"optimizer": optax.adam(0.1), "batches": ORDER, "subset": None, **QUIET}
    by_flax = through_training(
        (x, y),
        (x, y),
        init=lambda key: {"params": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)}},
        loss=lambda params, batch: (net.apply(params, batch[0])[:, 0] - batch[1]) ** 2,
        **options,
    )

    def init(key):  # a module with functions and an integer array among its leaves
        made = equinox.nn.MLP(2, "scalar", 4, 0, final_activation=lambda z: z, key=key)
        layer = made.layers[0]
        return equinox.tree_at(
            lambda m: (m.layers[0].weight, m.layers[0].bias),
            made,
            (jnp.ones_like(layer.weight), jnp.zeros_like(layer.bias)),
        )

    by_equinox = through_training(
        (x, y),
        (x, y),
        init=init,
        loss=lambda model, batch: (jax.vmap(model)(batch[0]) - batch[1]) ** 2,
        **options,
    )
    np.testing.assert_allclose(by_equinox.values, by_flax.values, rtol=1e-4, atol=1e-5)
