"""What each run is trained on: the order of batches, the weights of examples, the random keys."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog import _validate
from sawlog.errors import ArgumentError
from sawlog.jax._training.replay import RunInputs

Order = Callable[[Any, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Random batches: each epoch is a permutation of the examples.

    With a subset, a batch has ``batch_size`` examples of the subset, as when training on the subset
    alone. The other examples are distributed over the batches, with weight 0.
    """

    batch_size: int
    epochs: int

    def __call__(self, key: Any, weights: np.ndarray) -> np.ndarray:
        random = np.random.default_rng(_numbers(key))
        present, absent = np.flatnonzero(weights > 0), np.flatnonzero(weights <= 0)
        size = min(self.batch_size, max(1, len(present)))
        count = max(1, len(present) // size)
        others = len(absent)
        if abs(len(present) - others) == 1:  # halves of an odd number: compiled once for both
            others = max(len(present), others)
        beside = -(-others // count)
        epochs = []
        for _ in range(self.epochs):
            own = random.permutation(present)[: count * size].reshape(count, -1)
            rest = np.full(count * beside, -1)
            rest[: len(absent)] = random.permutation(absent)
            epochs.append(np.concatenate([own, rest.reshape(beside, count).T], 1))
        return np.concatenate(epochs)


@dataclasses.dataclass(frozen=True)
class UserBatches:
    """The user's batches: an array for all runs, or a function of a key."""

    batches: Any
    count: int

    def __call__(self, key: Any, weights: np.ndarray) -> np.ndarray:
        batches = self.batches(key) if callable(self.batches) else self.batches
        order = _rectangle(batches)
        if order.ndim != 2 or not order.size:
            raise ArgumentError(
                "`batches` must contain the indices of the examples of each batch, [steps, batch]; "
                f"got the shape {order.shape}."
            )
        if order.dtype.kind not in "iu" or order.max() >= self.count or order.min() < -1:
            raise ArgumentError(
                f"`batches` must contain indices below {self.count}, the number of examples, or -1 "
                f"for an empty place; got {order.dtype} from {order.min()} to {order.max()}."
            )
        return order


def _rectangle(batches: Any) -> np.ndarray:
    """Return batches of different sizes as one array, with -1 in empty places."""
    if hasattr(batches, "shape"):
        return np.asarray(batches)
    rows = [np.asarray(batch).ravel() for batch in batches]
    width = max((len(row) for row in rows), default=0)
    order = np.full((len(rows), width), -1)
    for out, row in zip(order, rows, strict=True):
        if len(row) and row.dtype.kind not in "iu":
            raise ArgumentError(f"`batches` must contain integers; got {row.dtype}.")
        out[: len(row)] = row
    return order


def subset_weights(subset: Any, count: int, run: int, seed: int) -> np.ndarray:
    """Return the weights of the examples of one run.

    Runs ``2 j`` and ``2 j + 1`` have complementary halves, so that each example is present in one
    of the two.

    Args:
        subset: The share of examples that are present; None for all; ``subset(run)`` may return
            weights; or an array ``[runs, n]``.
        count: The number of examples.
        run: The number of the run.
        seed: The seed of all runs.
    """
    if subset is None:
        return np.ones(count)
    if callable(subset):
        return _checked(np.asarray(subset(run), float), count)
    if not is_share(subset):
        return _checked(_row(np.asarray(subset, float), run), count)
    share = _validate.fraction("subset", float(subset))
    paired = is_paired(subset)
    random = np.random.default_rng([seed, 7, run // 2 if paired else run])
    chosen = random.permutation(count)[: max(1, round(share * count))]
    weights = np.zeros(count)
    weights[chosen] = 1
    return 1 - weights if paired and run % 2 else weights


def is_paired(subset: Any) -> bool:
    """Return whether two successive runs have complementary halves of the data."""
    return is_share(subset) and float(subset) == 0.5


def is_share(subset: Any) -> bool:
    """Return whether a subset is given as a share of the data."""
    return isinstance(subset, numbers.Real) and not isinstance(subset, bool)


def _row(weights: np.ndarray, run: int) -> np.ndarray:
    if weights.ndim != 2 or run >= len(weights):
        raise ArgumentError(
            f"`subset` must be a share, a function, None, or an array of weights [runs, n] with a "
            f"row for run {run}; got the shape {weights.shape}."
        )
    row: np.ndarray = weights[run]
    return row


def _checked(weights: np.ndarray, count: int) -> np.ndarray:
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ArgumentError(
            f"`subset` must return {count} non-negative weights for each run; got the shape "
            f"{weights.shape}."
        )
    return weights


def run_keys(seed: int, run: int) -> tuple[Any, Any, Any]:
    """Return the keys of one run: for ``init``, for the order of batches, for the steps."""
    return tuple(jax.random.split(jax.random.fold_in(jax.random.key(seed), run), 3))


def run_inputs(
    order: Order, weights: np.ndarray, keys: tuple[Any, Any, Any], dtype: Any
) -> RunInputs:
    """Return what a run is trained on."""
    rows = order(keys[1], weights)
    steps = jax.random.split(keys[2], len(rows))
    return RunInputs(jnp.asarray(rows, jnp.int32), jnp.asarray(weights, dtype), steps)


def _numbers(key: Any) -> list[int]:
    return np.asarray(jax.random.key_data(key)).ravel().tolist()
