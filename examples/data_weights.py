"""Weights on training examples that lower a validation loss, in two rounds.

    python examples/data_weights.py        # half a minute on one core

A fifth of the labels of scikit-learn's digits are wrong. Training is differentiated by a weight on
each example: which weights would lower the loss of a small, clean validation set? The weights take
a step in that direction, and a second step from there. After each round, models with new seeds are
trained with the weights, and tested on examples that were never used. ``--quick`` trains fewer
models.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sawlog import influence

TRAIN, VALIDATION, TEST, WRONG = 500, 150, 400, 0.2
OPTIMIZER = optax.adam(3e-3)
BATCH, EPOCHS, ROUNDS = 25, 10, 2
#: A step multiplies the weight of a typical example by exp(RATE) or exp(-RATE).
RATE = 1.0

Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Round:
    """What was measured with the weights of one round.

    Args:
        loss: The test loss, mean over models.
        error: Its standard error.
        accuracy: The test accuracy.
        right: The mean weight of examples with a right label.
        wrong: The mean weight of examples with a wrong label.
    """

    loss: float
    error: float
    accuracy: float
    right: float
    wrong: float


def digits(seed: int = 0) -> tuple[Data, Data, Data, np.ndarray]:
    """Training, validation and test data, and which training labels are wrong."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = random.permutation(len(x))[: TRAIN + VALIDATION + TEST]
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    wrong = np.zeros(TRAIN, bool)
    wrong[random.permutation(TRAIN)[: round(WRONG * TRAIN)]] = True
    rows = np.flatnonzero(wrong)
    y[rows] = (y[rows] + random.integers(1, 10, len(rows))) % 10
    ends = np.cumsum([0, TRAIN, VALIDATION, TEST])
    parts = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(ends)]
    return *parts, wrong


def init(key: Any) -> dict[str, Any]:
    """Return the parameters of an MLP with one hidden layer."""
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (64, 32)) / 8,
        "out": jax.random.normal(second, (32, 10)) / 6,
        "bias": jnp.zeros(10),
    }


def logits(params: Any, x: Any) -> Any:
    """Return the logits of each class."""
    return jax.nn.gelu(x @ params["in"]) @ params["out"] + params["bias"]


def loss(params: Any, batch: Any) -> Any:
    """Return the loss of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch[0]), batch[1])


def improved(train: Data, validation: Data, weights: np.ndarray, runs: int, seed: int) -> Any:
    """Return weights one step further, and the scores that they come from."""
    asked = jax.tree.map(jnp.asarray, validation)
    scores = influence.through_training(
        train,
        init=init,
        loss=loss,
        optimizer=OPTIMIZER,
        metric=lambda params: loss(params, asked).mean()[None],
        batch_size=BATCH,
        epochs=EPOCHS,
        runs=runs,
        seed=seed,
        subset=lambda run: weights,  # all examples, with the weights so far
        average="mean",
        check=False,
        query_ids=["validation loss"],
    )
    # A positive score: more weight on the example lowers the loss.
    step = scores.values[0] / np.sqrt(np.mean(scores.values[0] ** 2))
    weights = weights * np.exp(RATE * np.clip(step, -3, 3))
    return weights / weights.mean(), scores


def trained(train: Data, weights: Any, key: Any) -> Any:
    """Train with weights by a plain loop; return the parameters."""
    start, shuffle = jax.random.split(key)
    params = init(start)
    orders = jax.vmap(lambda own: jax.random.permutation(own, TRAIN))
    order = orders(jax.random.split(shuffle, EPOCHS)).reshape(-1, BATCH)
    data = jax.tree.map(jnp.asarray, train)

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        params, memory = state
        batch, own = jax.tree.map(lambda a: a[rows], data), weights[rows]
        grads = jax.grad(lambda p: (own * loss(p, batch)).sum() / own.sum())(params)
        updates, memory = OPTIMIZER.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), None

    return jax.lax.scan(step, (params, OPTIMIZER.init(params)), order)[0][0]


def testing(train: Data, test: Data, wrong: np.ndarray, models: int) -> Callable[..., Round]:
    """Return a function that trains models with new seeds and some weights, and tests them."""
    asked = jax.tree.map(jnp.asarray, test)

    def one(key: Any, weights: Any) -> Any:
        params = trained(train, weights, key)
        right = logits(params, asked[0]).argmax(-1) == asked[1]
        return loss(params, asked).mean(), right.mean()

    together = jax.jit(jax.vmap(one, (0, None)))
    keys = jax.random.split(jax.random.key(9), models)

    def tested(weights: np.ndarray) -> Round:
        losses, right = map(np.asarray, together(keys, weights.astype(np.float32)))
        return Round(
            float(losses.mean()),
            float(losses.std(ddof=1) / np.sqrt(models)),
            float(right.mean()),
            float(weights[~wrong].mean()),
            float(weights[wrong].mean()),
        )

    return tested


def main(arguments: Sequence[str] | None = None) -> list[Round]:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer models")
    quick = parser.parse_args(arguments).quick
    runs, models = (2, 4) if quick else (4, 12)
    train, validation, test, wrong = digits()
    weights = np.ones(TRAIN)
    print(f"{TRAIN} examples, {wrong.sum()} with a wrong label; {VALIDATION} to validate")
    tested = testing(train, test, wrong, models)
    found = [tested(weights)]
    for number in range(ROUNDS):
        weights, _ = improved(train, validation, weights, runs, seed=number)
        found.append(tested(weights))
    for number, each in enumerate(found):
        print(
            f"round {number}: test loss {each.loss:.3f} (standard error {each.error:.3f}), "
            f"accuracy {each.accuracy:.1%}, mean weight of right labels {each.right:.2f}, of "
            f"wrong labels {each.wrong:.2f}"
        )
    return found


if __name__ == "__main__":
    main()
