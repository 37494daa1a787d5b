"""``run.check`` for JAX: run some examples of a batch alone, and compare them with the batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.capture._backend import CutOne
from sawlog.capture._check import Check, added_up, compared, loss_problem
from sawlog.errors import ArgumentError, CaptureError, SawlogError
from sawlog.jax._core.arrays import unsharded

if TYPE_CHECKING:
    from sawlog.jax._capture_run.backend import JaxBackend

_TOLERANCE = {"float64": 1e-5, "float32": 2e-3}
_COARSE = 0.1


def check_batch(
    backend: JaxBackend,
    loss_fn: Any,
    reduction: str,
    batch: Any,
    examples: int,
    one: CutOne,
    tolerance: float | None,
) -> Check:
    """Compare captured gradients of some examples with ordinary differentiation of each alone."""
    arrays = backend.as_arrays(batch)
    size = backend.size_of(arrays)
    if not size:
        raise ArgumentError(
            "The batch to check has no examples. Hint: run.check(loss_fn, next(iter(loader)))."
        )
    params = backend.params
    how = backend.reduction_of(loss_fn, reduction, arrays)
    proof = backend.proof(loss_fn, how)
    count = min(size, max(1, examples))
    places = tuple(np.unique(np.linspace(0, size - 1, count).round().astype(int)).tolist())
    try:
        logged = proof(params, arrays)
        cut = one or (lambda _, i: _example(backend, arrays, i))
        alone = [_alone(backend, proof, how, cut(batch, i), arrays, size) for i in places]
    except CaptureError as error:
        return Check((), (), 0.0, "", (), str(error))
    limit = _limit(params, logged.coarsest) if tolerance is None else tolerance
    rows = {name: np.asarray(each, np.float64) for name, each in logged.grads.items()}
    expected = {name: np.stack([_whole(each, name) for each in alone]) for name in rows}
    total = {name: np.asarray(each) for name, each in (logged.batch_gradient or {}).items()}
    floor = 1e-6 * max((float(np.abs(each).max()) for each in expected.values()), default=0.0)
    layers = tuple(
        added_up(
            compared(name, rows[name][list(places)], expected[name], limit, floor),
            rows[name],
            1.0,
            total[name],
            limit,
        )
        for name in rows
    )
    losses = np.asarray(logged.losses, np.float64)
    own = {i: float(np.sum(each.losses)) for i, each in zip(places, alone, strict=True)}
    several = losses if how == "none" else None
    loss = loss_problem(float(losses.sum()), several, own, size, max(limit, 1e-4))
    reasons = []
    if not all(layer.same for layer in layers):
        reasons.append(
            "The loss of an example alone has another gradient than in the batch: statistics over "
            "the batch, random numbers that depend on its shape, or padding that is not masked."
        )
    return Check(layers, places, limit, loss, tuple(reasons))


def _alone(backend: JaxBackend, proof: Any, how: str, one: Any, batch: Any, size: int) -> Any:
    """Capture a batch of one example.

    A function that splits its batch may not accept one example. Then the batch has the example as
    often as it had examples, and its gradient is that of the example, times their number.
    """
    try:
        return proof(backend.params, one)
    except SawlogError:
        raise
    except Exception as error:
        repeated = _repeated(backend, one, batch, size)
        try:
            found = proof(backend.params, repeated)
        except Exception:
            raise error from None
    grads = {name: each / size for name, each in found.batch_gradient.items()}
    losses = found.losses if how == "mean" else np.sum(found.losses) / size
    return dataclasses.replace(found, batch_gradient=grads, losses=losses)


def _repeated(backend: JaxBackend, one: Any, batch: Any, size: int) -> Any:
    """Return a batch of this example alone, sharded as ``batch`` is."""
    leaves, tree = jax.tree.flatten(one)
    axes, given = backend.axes_of(one), jax.tree.leaves(batch)
    many = [
        leaf if axis is None else jnp.repeat(jnp.asarray(leaf), size, axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    if len(given) == len(many):
        many = [
            jax.device_put(x, like.sharding) if unsharded(like) is not like else x
            for x, like in zip(many, given, strict=True)
        ]
    return jax.tree.unflatten(tree, many)


def _whole(captured: Any, name: str) -> np.ndarray:
    """Return the gradient of a block by ordinary differentiation."""
    return np.asarray(captured.batch_gradient[name], np.float64)


def _example(backend: JaxBackend, batch: Any, i: int) -> Any:
    """Return a batch of one example."""
    leaves, tree = jax.tree.flatten(batch)
    axes = backend.axes_of(batch)
    cut = [
        leaf if axis is None else jnp.take(unsharded(jnp.asarray(leaf)), jnp.array([i]), axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return jax.tree.unflatten(tree, cut)


def _limit(params: Any, coarsest: str | None) -> float:
    if coarsest is not None:
        return _COARSE
    dtypes = [str(x.dtype) for x in jax.tree.leaves(params) if hasattr(x, "dtype")]
    floats = [d for d in dtypes if "float" in d]
    return max((_TOLERANCE.get(d, _COARSE) for d in floats), default=_COARSE)
