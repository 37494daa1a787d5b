"""Tasks with the answer by retraining: digits, and noisy regressions.

The answer is the mean loss of each query over seeds, for models retrained on random halves. It is
kept on disk, because it takes longest.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.stats import rankdata

CACHE = Path(os.environ.get("SAWLOG_BENCH_CACHE", Path(tempfile.gettempdir()) / "sawlog-lds"))


@dataclasses.dataclass(frozen=True)
class Task:
    """Data, model and optimizer; ``loss(params, batch) -> [batch]``."""

    name: str
    data: tuple[np.ndarray, np.ndarray]
    queries: tuple[np.ndarray, np.ndarray]
    sizes: tuple[int, ...]
    activation: Callable[[Any], Any]
    regression: bool
    optimizer: Any
    batch_size: int
    epochs: int
    subsets: int
    seeds: int
    draw: int

    def init(self, key: Any) -> list[tuple[Any, Any]]:
        layers = []
        for rows, cols in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            key, own = jax.random.split(key)
            bound = 1 / np.sqrt(rows)
            weight = jax.random.uniform(own, (rows, cols), minval=-bound, maxval=bound)
            layers.append((weight, jnp.zeros(cols)))
        return layers

    def outputs(self, params: Any, x: Any) -> Any:
        for weight, bias in params[:-1]:
            x = self.activation(x @ weight + bias)
        return x @ params[-1][0] + params[-1][1]

    def loss(self, params: Any, batch: Any) -> Any:
        x, y = batch
        out = self.outputs(params, x)
        if self.regression:
            return 0.5 * (out[:, 0] - y) ** 2
        return optax.softmax_cross_entropy_with_integer_labels(out, y)


def digits(draw: int = 0, train: int = 1000, test: int = 200, subsets: int = 100) -> Task:
    """Digits with 10 % wrong labels; an MLP with ReLU, trained by SGD with momentum."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    random = np.random.default_rng([draw, 11])
    order = random.permutation(len(x))[: train + test]
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    wrong = random.permutation(train)[: train // 10]
    y[wrong] = (y[wrong] + random.integers(1, 10, len(wrong))) % 10
    return Task(
        "digits",
        (x[:train], y[:train]),
        (x[train:], y[train:]),
        (64, 64, 32, 10),
        jax.nn.relu,
        False,
        optax.sgd(0.03, momentum=0.9),
        50,
        20,
        subsets,
        60,
        draw,
    )


@dataclasses.dataclass(frozen=True)
class Regression:
    """A kind of noisy regression.

    Args:
        inputs: The number of inputs.
        targets: ``targets(x, random)`` returns noisy targets.
        hidden: The sizes of the hidden layers.
        optimizer: The optimizer.
        activation: The activation function.
        batch_size: The number of examples of a batch.
        epochs: The number of epochs.
    """

    inputs: int
    targets: Callable[[np.ndarray, Any], np.ndarray]
    hidden: tuple[int, ...]
    optimizer: Any
    activation: Callable[[Any], Any] = jnp.tanh
    batch_size: int = 20
    epochs: int = 40


def _smooth(x: np.ndarray, random: Any) -> np.ndarray:
    clean = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] - 0.5 * x[:, 3]
    return clean + 0.5 * random.normal(size=len(x))


def _heteroscedastic(x: np.ndarray, random: Any) -> np.ndarray:
    noise = (0.1 + 0.4 * np.abs(x[:, 2])) * random.normal(size=len(x))
    return np.cos(x[:, 0]) * x[:, 1] + noise


def _wrong(x: np.ndarray, random: Any) -> np.ndarray:
    y = np.tanh(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2] ** 2 + 0.2 * random.normal(size=len(x))
    return np.where(random.random(len(x)) < 0.1, random.normal(size=len(x)) - y, y)


def _heavy(x: np.ndarray, random: Any) -> np.ndarray:
    return x[:, 0] * x[:, 1] - np.abs(x[:, 2]) + 0.3 * random.standard_t(3, size=len(x))


#: Smooth functions with noise, and networks that are trained to overfit.
REGRESSIONS = {
    "regression": Regression(4, _smooth, (32,), optax.adam(1e-2)),
    "two-layers": Regression(4, _smooth, (24, 24), optax.adam(5e-3), epochs=30),
    "heteroscedastic": Regression(3, _heteroscedastic, (24,), optax.adam(1e-2), batch_size=16),
    "wrong-targets": Regression(
        6, _wrong, (20, 20), optax.adamw(5e-3, weight_decay=1e-2), jax.nn.gelu, 25
    ),
    "heavy-tails": Regression(5, _heavy, (48,), optax.adam(2e-2), epochs=30),
}


def regression(
    draw: int = 0, train: int = 200, test: int = 100, subsets: int = 100, kind: str = "regression"
) -> Task:
    """One of :data:`REGRESSIONS`."""
    own = REGRESSIONS[kind]
    random = np.random.default_rng([draw, 12])
    x = random.normal(size=(train + test, own.inputs)).astype(np.float32)
    y = own.targets(x, random).astype(np.float32)
    return Task(
        kind,
        (x[:train], y[:train]),
        (x[train:], y[train:]),
        (own.inputs, *own.hidden, 1),
        own.activation,
        True,
        own.optimizer,
        own.batch_size,
        own.epochs,
        subsets,
        30,
        draw,
    )


# -- the answer -----------------------------------------------------------------------------------


def halves(task: Task) -> np.ndarray:
    """Random halves of the training data, ``[subsets, train / 2]``."""
    random = np.random.default_rng([task.draw, 13])
    count = len(task.data[0])
    return np.stack([random.permutation(count)[: count // 2] for _ in range(task.subsets)])


def retrained(task: Task, together: int = 50) -> np.ndarray:
    """Losses of the queries after retraining, ``[subsets, seeds, queries]``.

    Each ten subsets are kept when they are done: a second call resumes.
    """
    program = jax.jit(jax.vmap(functools.partial(_train, task)))
    chosen, found = halves(task), []
    CACHE.mkdir(parents=True, exist_ok=True)
    for first in range(0, task.subsets, 10):
        path = CACHE / f"{_named(task)}-{task.seeds}-{first}.npy"
        if not path.exists():
            own = range(first, min(task.subsets, first + 10))
            np.save(path, _retrained(task, program, chosen, own, together))
        found.append(np.load(path))
    return np.concatenate(found)


def _named(task: Task) -> str:
    sizes = len(task.data[0]), len(task.queries[0]), task.subsets
    return f"jax-{task.name}-{task.draw}-{'-'.join(map(str, sizes))}"


def _retrained(
    task: Task, program: Any, chosen: np.ndarray, subsets: range, together: int
) -> np.ndarray:
    jobs = [(s, r) for s in subsets for r in range(task.seeds)]
    found = []
    for first in range(0, len(jobs), together):
        part = jobs[first : first + together]
        keys = jnp.stack(
            [jax.random.fold_in(jax.random.key(9000 + task.draw), 1000 * s + r) for s, r in part]
        )
        found.append(np.asarray(program(keys, jnp.asarray(chosen[[s for s, _ in part]]))))
    return np.concatenate(found).reshape(len(subsets), task.seeds, len(task.queries[0]))


def _train(task: Task, key: Any, subset: Any) -> Any:
    return task.loss(trained(task, key, subset), jax.tree.map(jnp.asarray, task.queries))


def trained(task: Task, key: Any, subset: Any) -> Any:
    """Train on some examples by a plain loop, and return the parameters."""
    first, second = jax.random.split(key)
    params = task.init(first)
    count = len(subset) // task.batch_size * task.batch_size

    def shuffled(own: Any) -> Any:
        return jax.random.permutation(own, subset)[:count].reshape(-1, task.batch_size)

    order = jax.vmap(shuffled)(jax.random.split(second, task.epochs))
    data = jax.tree.map(jnp.asarray, task.data)

    def step(state: Any, rows: Any) -> tuple[Any, None]:
        params, memory = state
        batch = jax.tree.map(lambda a: a[rows], data)
        grads = jax.grad(lambda p: task.loss(p, batch).mean())(params)
        updates, memory = task.optimizer.update(grads, memory, params)
        return (optax.apply_updates(params, updates), memory), None

    state = (params, task.optimizer.init(params))
    state, _ = jax.lax.scan(step, state, order.reshape(-1, task.batch_size))
    return state[0]


def lds(task: Task, scores: np.ndarray, answer: np.ndarray | None = None) -> float:
    """Mean rank correlation over queries; positive scores lower the loss."""
    losses = (retrained(task) if answer is None else answer).mean(1)
    predicted = np.stack([scores[:, own].sum(1) for own in halves(task)])
    return float(np.mean(correlations(-predicted, losses)))


def correlations(predicted: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation over subsets for each query."""
    a, b = rankdata(predicted, axis=0), rankdata(losses, axis=0)
    a, b = a - a.mean(0), b - b.mean(0)
    return (a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))


def attainable(task: Task) -> float:
    """How well the mean of half of the seeds predicts that of the others, stepped up to all."""
    answer = retrained(task)
    half = task.seeds // 2
    r = np.mean(correlations(answer[:, :half].mean(1), answer[:, half:].mean(1)))
    return float(np.sqrt(2 * r / (1 + r)))


# -- influence functions --------------------------------------------------------------------------


def influence_scores(task: Task, params: Any, dampings: tuple[float, ...], weights: Any) -> Any:
    """``q^T (C + d)^-1 g`` for each damping, ``[dampings, q, n]``.

    ``C`` is the exact Gauss-Newton matrix over all layers for a regression, and the matrix of
    second moments of gradients for digits. Dampings are relative to its mean eigenvalue, weighted
    by itself.
    """
    from jax.flatten_util import ravel_pytree

    flat, back = ravel_pytree(params)

    def one(v: Any, example: Any) -> Any:
        return task.loss(back(v), jax.tree.map(lambda a: a[None], example))[0]

    def output(v: Any, example: Any) -> Any:
        return task.outputs(back(v), example[0][None])[0, 0]

    data, queries = jax.tree.map(jnp.asarray, (task.data, task.queries))
    slopes = jax.vmap(jax.grad(one), (None, 0))
    g, q = slopes(flat, data), slopes(flat, queries)
    root = jax.vmap(jax.grad(output), (None, 0))(flat, data) if task.regression else g
    root = root * jnp.sqrt(weights / weights.sum())[:, None]
    values, vectors = jnp.linalg.eigh(root @ root.T)
    values = jnp.maximum(values, 0)
    usual = (values**2).sum() / values.sum()
    left, right, plain = (q @ root.T) @ vectors, vectors.T @ (root @ g.T), q @ g.T
    # Woodbury's identity: inverted in the space of examples
    found = [(plain - (left / (values + d * usual)) @ right) / (d * usual) for d in dampings]
    return jnp.stack(found)
