"""What would the test loss be without the labels of one annotator? Predict it, then measure it.

    python examples/drop_a_group.py        # about a minute on one core

Two annotators label scikit-learn's digits. One of them is careless: 60 % of the labels are wrong.
The training of a small MLP is differentiated by the weight of the careless labels, in runs in which
that weight is between 0 and 1. The mean of the derivatives over these runs is the change of the
test loss if the labels are left out, with a 90 % interval. Then models are trained with and
without them. ``--quick`` trains fewer models.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sawlog import influence

TRAIN, TEST, CARELESS, WRONG = 500, 300, 50, 0.6
OPTIMIZER = optax.adam(3e-3)
BATCH, EPOCHS = 25, 10


@dataclasses.dataclass(frozen=True)
class Result:
    """The change of the test loss without the group: predicted with an interval, and measured."""

    predicted: float
    low: float
    high: float
    measured: float
    error: float


def digits(seed: int = 0) -> tuple[Any, Any, np.ndarray]:
    """Training data, test data, and which training labels the careless annotator gave."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = random.permutation(len(x))[: TRAIN + TEST]
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    careless = np.arange(TRAIN) < CARELESS
    wrong = np.flatnonzero(careless & (random.random(TRAIN) < WRONG))
    y[wrong] = (y[wrong] + random.integers(1, 10, len(wrong))) % 10
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:]), careless


def init(key: Any) -> dict[str, Any]:
    """Return the parameters of an MLP with one hidden layer."""
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (64, 32)) / 8,
        "out": jax.random.normal(second, (32, 10)) / 6,
        "bias": jnp.zeros(10),
    }


def loss(params: Any, batch: Any) -> Any:
    """Return the loss of each example."""
    logits = jax.nn.gelu(batch[0] @ params["in"]) @ params["out"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1])


def predicted(train: Any, test: Any, careless: np.ndarray, runs: int) -> tuple[float, float, float]:
    """Return the predicted change of the test loss without the group, and a 90 % interval."""
    test = jax.tree.map(jnp.asarray, test)
    scores = influence.through_training(
        train,
        init=init,
        loss=loss,
        optimizer=OPTIMIZER,
        metric=lambda params: loss(params, test).mean()[None],
        batch_size=BATCH,
        epochs=EPOCHS,
        runs=runs,
        # The integral of the derivative over the weight of the group is the whole change.
        subset=lambda run: np.where(careless, (run + 0.5) / runs, 1.0),
        average="mean",  # without bias, to add up
        check=False,
        query_ids=["test loss"],
    )
    group = scores.of_groups({"careless": np.flatnonzero(careless)})
    low, high = group.interval(0.9)
    return tuple(float(found[0, 0]) / TRAIN for found in (group.values, low, high))


def measured(train: Any, test: Any, careless: np.ndarray, runs: int) -> tuple[float, float]:
    """Train with and without the group; return the change of the test loss and its error."""
    keys = jax.random.split(jax.random.key(100), runs)
    all_of_them, others = np.arange(TRAIN), np.flatnonzero(~careless)
    whole, without = (
        np.asarray(jax.jit(jax.vmap(lambda key, own=own: trained(train, test, own, key)))(keys))
        for own in (all_of_them, others)
    )
    change = without - whole
    return float(change.mean()), float(change.std(ddof=1) / np.sqrt(runs))


def trained(train: Any, test: Any, chosen: np.ndarray, key: Any) -> Any:
    """Train on some examples by a plain loop; return the test loss."""
    start, shuffle = jax.random.split(key)
    params = init(start)
    per_epoch = len(chosen) // BATCH

    def epoch(own: Any) -> Any:
        return jax.random.permutation(own, chosen)[: per_epoch * BATCH].reshape(-1, BATCH)

    order = jax.vmap(epoch)(jax.random.split(shuffle, EPOCHS)).reshape(-1, BATCH)

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        params, memory = state
        batch = jax.tree.map(lambda a: jnp.asarray(a)[rows], train)
        grads = jax.grad(lambda p: loss(p, batch).mean())(params)
        updates, memory = OPTIMIZER.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), None

    (params, _), _ = jax.lax.scan(step, (params, OPTIMIZER.init(params)), order)
    return loss(params, test).mean()


def main(arguments: Sequence[str] | None = None) -> Result:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer models")
    quick = parser.parse_args(arguments).quick
    train, test, careless = digits()
    found = predicted(train, test, careless, runs=8 if quick else 20)
    print(f"predicted change without the careless annotator: {found[0]:+.3f}")
    print(f"90 % interval: {found[1]:+.3f} to {found[2]:+.3f}")
    change, error = measured(train, test, careless, runs=16 if quick else 60)
    print(f"measured by training again: {change:+.3f} (standard error {error:.3f})")
    return Result(*found, change, error)


if __name__ == "__main__":
    main()
