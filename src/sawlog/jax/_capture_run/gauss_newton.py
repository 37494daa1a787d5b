"""The exact Gauss-Newton matrix of a small JAX model, over all of its parameters together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog._validate import one_of
from sawlog.curvature import Curvature, Joint
from sawlog.errors import ArgumentError
from sawlog.jax._capture_run.backend import JaxBackend
from sawlog.jax._capture_run.run import JaxRun

MOST = 20_000
LOSSES = ("cross_entropy", "mse")


def gauss_newton(
    run: JaxRun,
    outputs_fn: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    loss: str = "cross_entropy",
) -> Curvature:
    """Compute the exact Gauss-Newton matrix, for :func:`sawlog.influence.attribute`.

    It is the mean over examples of ``J^T A J``, with the Jacobian ``J`` of the outputs with respect
    to all watched parameters, and the second derivative ``A`` of the loss with respect to the
    outputs. It couples the layers, takes the square of the number of parameters in memory, and
    its cube in time: it is for small models. It does not depend on the labels. Everything is
    computed in float64. Rows of other weights than those that it was computed with are refused.

    Args:
        run: A run without compression that watches the loss function.
        outputs_fn: ``outputs_fn(params, batch)`` returns the outputs of the model,
            ``[examples, outputs]``, as the loss function computes them.
        params: The parameters.
        batches: Batches as for the loss function.
        loss: ``"cross_entropy"`` of outputs that are logits, or ``"mse"``, the mean of the squares
            over outputs, each as that of an example alone.

    Raises:
        ArgumentError: The model is too large, its gradients are compressed, its outputs have
            another shape, or there are no examples.
        CaptureError: The outputs of one example depend on other examples.

    >>> import tempfile, jax.numpy as jnp, sawlog
    >>> def outputs_fn(params, batch):
    ...     return batch["x"] @ params["w"]
    >>> def loss_fn(params, batch):
    ...     return ((outputs_fn(params, batch) - batch["y"]) ** 2).mean(-1)
    >>> params = {"w": jnp.ones((3, 2))}
    >>> batch = {"x": jnp.ones((4, 3)), "y": jnp.zeros((4, 2))}
    >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
    >>> report = run.watch(loss_fn, params, batch, quiet=True)
    >>> sawlog.jax.gauss_newton(run, outputs_fn, params, [batch], "mse")
    Curvature('gauss-newton', 1 layers)
    """
    one_of("loss", loss, LOSSES)
    backend = _backend_of(run)
    size = sum(block.elements for block in backend.blocks)
    if size > MOST:
        raise ArgumentError(
            f"The exact matrix of {size:,} parameters would take {8e-9 * size**2:.0f} GB; the "
            f'limit is {MOST:,} parameters. Hint: curvature="ekfac", or watch fewer parameters.'
        )
    backend.params = params
    provenance = backend.provenance()
    total, count = np.zeros((size, size)), 0
    with jax.enable_x64(True):
        exact = jax.tree.map(_wide, params)
        rows = _Rows(backend, outputs_fn, loss)
        for batch in batches:
            for part in rows.of(exact, jax.tree.map(_wide, backend.as_arrays(batch))):
                total += part.T @ part
            count += backend.size_of(batch)
    if not count:
        raise ArgumentError(
            "The batches have no examples. Hint: an iterator that was read before is empty."
        )
    shapes = {block.name: block.shape for block in backend.blocks}
    return Curvature(
        "gauss-newton", {}, Joint(total / count, shapes), count, [provenance.to_json()]
    )


class _Rows:
    """Computes rows whose squares add up to the matrix.

    Row k of an example is the gradient of its outputs, weighted with row k of a root ``R`` of the
    second derivative, ``R^T R = A``.

    Args:
        backend: The watched loss function.
        outputs_fn: Returns the outputs of the model.
        loss: One of ``LOSSES``.
    """

    def __init__(self, backend: JaxBackend, outputs_fn: Callable[..., Any], loss: str) -> None:
        self._backend, self._outputs_fn, self._loss = backend, outputs_fn, loss
        self._capture = backend.capture_with(self._weighted)

    def of(self, params: Any, batch: Any) -> Iterable[np.ndarray]:
        """Return ``[examples, elements]`` for each output of the model."""
        blocks = self._backend.blocks
        width = self._width(params, batch)
        plan = self._capture.plan(params, (batch, 0))
        if plan.blocks != blocks:
            raise ArgumentError(
                "`outputs_fn` uses the parameters in another way than the watched loss function. "
                "Hint: compute the outputs as the loss function does."
            )
        for k in range(width):
            found = self._capture(params, (batch, np.int32(k))).grads
            yield np.concatenate(
                [np.asarray(found[b.name]).reshape(-1, b.elements) for b in blocks], axis=1
            )

    def _weighted(self, params: Any, given: Any) -> Any:
        batch, k = given
        outputs = self._outputs_fn(params, batch)
        own = (jnp.arange(outputs.shape[1]) == k).astype(outputs.dtype)
        if self._loss == "mse":
            return (outputs * own).sum(1) * (2 / outputs.shape[1]) ** 0.5
        p = jax.nn.softmax(jax.lax.stop_gradient(outputs), axis=1)
        root = jnp.sqrt((p * own).sum(1, keepdims=True)) * (own - p)
        return (outputs * root).sum(1)

    def _width(self, params: Any, batch: Any) -> int:
        """Return the number of outputs of an example."""
        found = jax.eval_shape(self._outputs_fn, params, batch)
        shape = getattr(found, "shape", None)
        if shape is None or len(shape) != 2 or shape[0] != self._backend.size_of(batch):
            what = type(found).__name__ if shape is None else list(shape)
            raise ArgumentError(
                f"`outputs_fn` must return an array [examples, outputs]; got {what}."
            )
        if shape[1] == 1 and self._loss == "cross_entropy":
            raise ArgumentError('The cross entropy of one class is 0. Hint: loss="mse".')
        return int(shape[1])


def _backend_of(run: Any) -> JaxBackend:
    if not isinstance(run, JaxRun):
        raise ArgumentError(
            f"`run` must be a run that watches a JAX function; got {type(run).__name__}. Hint: "
            "run.watch(loss_fn, params, batch) first."
        )
    if run.options.compress is not None:
        raise ArgumentError(
            "The exact Gauss-Newton matrix needs whole gradients, and the run compresses them. "
            "Hint: run.setup(...) without compress."
        )
    return run._function()


def _wide(leaf: Any) -> Any:
    """Return an array of floats in float64; anything else unchanged."""
    kind = getattr(leaf, "dtype", None)
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        return leaf
    return jnp.asarray(np.asarray(leaf, np.float64))
