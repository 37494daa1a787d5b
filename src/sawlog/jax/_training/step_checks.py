"""What is checked at the first run of a program: the derivative of a step, and weights of 0."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._training.deterministic import equal, names_of_different
from sawlog.jax._training.replay import Replay, RunInputs
from sawlog.jax._training.schedule import ReplayPlan
from sawlog.jax._training.states import Arrays

#: How the comparison of two derivatives, which is evaluated twice, is compiled on CPUs.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

#: By which share two derivatives of a step may differ, or metrics that should not change.
SAME = 1e-3


class Measure(Protocol):
    """Returns the metrics of the queries of a state."""

    def __call__(self, last: Arrays) -> np.ndarray: ...


def needs_reverse(replay: Replay, states: list[Arrays], inputs: RunInputs) -> bool:
    """Return whether the short derivative of a step is not that of what the step does.

    It uses that the derivative of a gradient is symmetric, and is that of the loss of each example
    as well. Where a loss stops gradients, clips or reverses them, neither is true. Both derivatives
    are compared along a random direction.

    Args:
        replay: The compiled functions.
        states: The first and the last state of a run.
        inputs: What the run was trained on.
    """
    program, data = replay.program, replay.data
    if program.by_reverse is None:
        return False
    batch, weights = replay.batch(data, inputs.weights, inputs.order[0])
    if not program.doubtful(states[0], batch, weights, inputs.keys[0]):
        return False
    by_reverse = program.by_reverse

    def compared(arrays: Arrays, own: tuple[Any, Any, Any], data: Any, along: list[Any]) -> Any:
        batch, weights = replay.batch(data, own[1], own[0])
        short, whole = (
            jax.tree.leaves(pull_back(arrays, batch, weights, own[2], along))
            for pull_back in (program.pull_back, by_reverse)
        )
        gaps = [jnp.abs(x - y).max() for x, y in zip(short, whole, strict=True) if x.size]
        sizes = [jnp.abs(y).max() for y in whole if y.size]
        same = [gap <= SAME * size for gap, size in zip(gaps, sizes, strict=True)]
        return ~jnp.all(jnp.stack(same))  # NaN is not the same

    random = np.random.default_rng(0)
    along = [jnp.asarray(random.normal(size=(1, *leaf.shape)), leaf.dtype) for leaf in states[0][0]]
    own = inputs.order[0], inputs.weights, inputs.keys[0]
    quickly = _QUICKLY if jax.default_backend() == "cpu" else None
    differs = jax.jit(compared, compiler_options=quickly)
    return any(bool(differs(arrays, own, data, along)) for arrays in states)


def check_absent(
    replay: Replay,
    start: Arrays,
    inputs: RunInputs,
    plan: ReplayPlan,
    last: Arrays,
    measure: Measure,
) -> bool:
    """Raise if examples with weight 0, or empty places of batches, change what is trained.

    The run is trained again with other data in their place.

    Returns:
        Whether there are such examples beside others.
    """
    order, weights = np.asarray(inputs.order), np.asarray(inputs.weights)
    own = np.where(order >= 0, weights[order], 0)
    mixed = (own > 0).any(1) & (own == 0).any(1)
    if not mixed.any():
        return False
    changed = _with_others(inputs, order, weights)
    data = _data_without(replay.data, weights)
    segment = int(np.argmax(mixed)) // plan.length
    before, _ = replay.segment(start, inputs, plan, segment)
    after, _ = replay.segment(start, changed, plan, segment, data)
    if bool(equal(before, after)):
        return True
    found, other = measure(last), measure(replay.train(start, changed, plan, data))
    size = float(np.abs(found).max())
    if np.abs(found - other).max() <= SAME * size:  # something beside, that no metric depends on
        return True
    names = ", ".join(names_of_different(before, after, replay.program.layout)[:3])
    raise ArgumentError(
        f"Examples with weight 0 change the state in a step: {names}; the metrics of the queries "
        f"change by up to {np.abs(found - other).max():.2g}. Those that a run leaves out, and "
        "empty places of batches, are in the batches with weight 0. Hint: statistics of the batch, "
        "as in batch normalization, must use the weights (flax: mask=weights > 0); or "
        "subset=None, and batches of the same size."
    )


def _with_others(inputs: RunInputs, order: np.ndarray, weights: np.ndarray) -> RunInputs:
    """Return the inputs with another example in empty places."""
    count = len(weights)
    rows = np.where(order == -1, -1 - (count - 1), order)
    return dataclasses.replace(inputs, order=jnp.asarray(rows, inputs.order.dtype))


def _data_without(data: Any, weights: np.ndarray) -> Any:
    """Return the data with examples that are present in place of those with weight 0."""
    present = np.flatnonzero(weights > 0)
    rows = np.where(weights > 0, np.arange(len(weights)), np.resize(present, len(weights)))
    return jax.tree.map(lambda x: x[rows], data)
