"""The wrong digits of wrong_digits.py in JAX: the same data, the same model, the same answer.

    python examples/wrong_digits_jax.py

A small MLP is trained on scikit-learn's digits, of which every tenth label was changed. Training is
one `scan`, which logs its loss into the run. Then the gradient of every image goes into the store,
and those with a large influence on themselves are inspected first.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sawlog
from sawlog import influence

TRAIN, WRONG = 1500, 0.1
SIZES = (64, 64, 32, 10)


def digits(seed: int = 0) -> tuple[np.ndarray, ...]:
    """Images, labels, and which of the training labels are wrong; training, then test images."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = random.permutation(len(images))
    x, y = (images[order] / 16).astype(np.float32), labels[order]
    wrong = np.zeros(TRAIN, bool)
    wrong[random.permutation(TRAIN)[: int(WRONG * TRAIN)]] = True
    other = (y[:TRAIN] + random.integers(1, 10, TRAIN)) % 10
    return x[:TRAIN], np.where(wrong, other, y[:TRAIN]), wrong, x[TRAIN:], y[TRAIN:]


def initial(seed: int = 0) -> dict[str, Any]:
    """The weight and bias of each layer before training; wrong_digits.py has the same."""
    random = np.random.default_rng(seed)
    return {
        f"layer{at}": {
            "w": jnp.asarray(random.normal(0, i**-0.5, (o, i)), jnp.float32).T,
            "b": jnp.zeros(o),
        }
        for at, (i, o) in enumerate(itertools.pairwise(SIZES))
    }


def batches(epochs: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The images of each step of training; wrong_digits.py has the same."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        yield from random.permutation(TRAIN).reshape(-1, 100)


def logits_of(params: Any, x: Any) -> Any:
    """The MLP."""
    for layer in list(params.values())[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params["layer2"]["w"] + params["layer2"]["b"]


def loss_of(params: Any, batch: Any) -> Any:
    """The loss of each image."""
    x, y = batch
    return optax.softmax_cross_entropy(logits_of(params, x), jax.nn.one_hot(y, SIZES[-1]))


def train(x: Any, y: Any, epochs: int) -> Any:
    """Adam with weight decay, as one scan that logs its loss."""
    optimizer = optax.adamw(2e-3, weight_decay=0.01)
    params = initial()

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        params, memory = state
        loss, grads = jax.value_and_grad(lambda p: loss_of(p, (x[rows], y[rows])).mean())(params)
        sawlog.log({"train/loss": loss})
        updates, memory = optimizer.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), None

    order = jnp.asarray(np.stack(list(batches(epochs))))
    return jax.lax.scan(step, (params, optimizer.init(params)), order)[0][0]


def main(arguments: Sequence[str] | None = None) -> influence.Ranking:
    """Train, log, rank; return the ranking."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)
    images, labels, wrong, test_x, test_y = digits()
    x, y = jnp.asarray(images), jnp.asarray(labels)
    params, logs = sawlog.spool(lambda: train(x, y, options.epochs))()
    loss = logs["train/loss"]
    accuracy = float((logits_of(params, test_x).argmax(1) == test_y).mean())
    print(f"Trained with {int(wrong.sum())} wrong labels; test accuracy {accuracy:.1%}.")
    print(f"  loss {loss[0]:.2f} -> {loss[-1]:.2f}")

    with tempfile.TemporaryDirectory() as folder:
        run = sawlog.init(project="digits", root=folder)
        run.setup(log="grad", statistic="kfac")
        parts = [(x[i : i + 250], y[i : i + 250]) for i in range(0, TRAIN, 250)]
        run.extract(loss_of, params, parts, quiet=True)
        suspects = influence.label_errors(run.store_path)
        for share in (0.05, 0.1, 0.2):
            recall = wrong[suspects.ids[: int(share * TRAIN)]].sum() / wrong.sum()
            print(
                f"  inspecting {share:>4.0%} of the images finds {recall:.0%} of the wrong labels"
            )
    return suspects


if __name__ == "__main__":
    main()
