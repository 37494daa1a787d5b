"""``run.check``: run some examples of a batch alone, and compare them with the batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sawlog._arrays import to_numpy
from sawlog.capture._backend import BatchRequest, CutOne, Step
from sawlog.capture._batches import size_of
from sawlog.capture._check import Check, added_up, compared, loss_problem
from sawlog.capture._query_pass import QueryPass
from sawlog.capture._run import CaptureRun
from sawlog.errors import ArgumentError, CaptureError
from sawlog.run_files._blocks import compressed
from sawlog.run_files._options import Compression
from sawlog.torch._capture._batch_capture import BatchCapture
from sawlog.torch._check._one_example import one_of
from sawlog.torch._check._plain_gradients import (
    RANK,
    autocast_seen,
    loss_of,
    plain_gradients,
    projected,
    reasons_for,
    rounding_of,
    state_restored,
    tolerance_of,
)
from sawlog.torch._model._names import named_parameters
from sawlog.torch._rows._projectors import Projectors

if TYPE_CHECKING:
    from sawlog.torch._backend import TorchBackend


@dataclasses.dataclass(frozen=True)
class _PlainAutograd:
    """Runs batches by plain autograd.

    Args:
        backend: the watched model.
        step: ``step(model, batch)`` returns a loss.
        queries: the capture that the gradients are compared with.
    """

    backend: TorchBackend
    step: Step
    queries: QueryPass

    def gradients(self, batch: Any, size: int = 1) -> tuple[dict[str, np.ndarray], float]:
        """Return the projected gradient of each block for a batch, and its loss."""
        model, blocks = self.backend.model, self.queries.blocks
        names = named_parameters(model)
        named: dict[str, Tensor] = {names[id(p)]: p for p in model.parameters()}
        grads, loss = plain_gradients(
            self.backend.step_model, self.step, batch, blocks, named, size
        )
        matrices = self.queries.matrices
        projectors = Projectors(matrices.projections, matrices.bases)
        return {b.name: projected(b, grads[b.name], projectors) for b in blocks}, loss


def check_batch(
    backend: TorchBackend,
    run: CaptureRun,
    step: Step,
    batch: Any,
    mask: Any,
    examples: int,
    one: CutOne,
    tolerance: float | None,
) -> Check:
    """Compare some examples of a batch alone with what is logged of them; see ``run.check``."""
    size, model = size_of(batch), backend.model
    if not size:
        raise ArgumentError(
            "The batch to check has no examples. Hint: run.check(step, next(iter(loader)))."
        )
    queries = _query_pass(backend, run)
    by_autograd = _PlainAutograd(backend, step, queries)
    modules = [unit.module for unit in backend.watched.units]
    with state_restored(model), autocast_seen(modules) as mixed:
        state = torch.random.get_rng_state()
        try:
            logged, whole, each, scale = _in_batch(backend, run, queries, step, batch, size, mask)
        except CaptureError as error:
            return Check((), (), 0.0, "", (), str(error))
        torch.random.set_rng_state(state)  # so that active dropout is the same in both
        total, _ = by_autograd.gradients(batch, size)
        cut = one or (lambda batch, i: one_of(batch, i, size, backend.axis))
        places = _spread(size, examples)
        found = [by_autograd.gradients(cut(batch, i)) for i in places]
        again, _ = by_autograd.gradients(cut(batch, places[0]))
    parameters = [p for p in model.parameters() if p.requires_grad]
    limit = tolerance_of(parameters, bool(mixed)) if tolerance is None else tolerance
    expected = {b.name: np.stack([rows[b.name] for rows, _ in found]) for b in queries.blocks}
    largest = max((float(np.abs(rows).max()) for rows in expected.values()), default=0.0)
    floor = max(1e-6, rounding_of(parameters) / limit) * largest if limit else 0.0
    layers = tuple(
        added_up(
            compared(name, logged[name][list(places)], rows, limit, floor),
            logged[name],
            scale,
            total[name],
            limit,
            floor,
        )
        for name, rows in expected.items()
    )
    losses = {i: loss for i, (_, loss) in zip(places, found, strict=True)}
    loss = loss_problem(whole, each, losses, size, max(limit, 1e-4))
    repeats = all(_same(rows, found[0][0][name], limit) for name, rows in again.items())
    reasons = [] if all(e.same for e in layers) else reasons_for(model, layers, repeats)
    return Check(layers, places, limit, loss, tuple(reasons))


def _query_pass(backend: TorchBackend, run: CaptureRun) -> QueryPass:
    """Return a capture of small random projections of the gradients."""
    options = run.options.without_statistic(
        log=("grad",),
        save=None,
        compress=Compression("orthonormal", rank=RANK),
        nonfinite="store",
    )
    blocks = compressed(backend.blocks, options.compress, "float32")
    return QueryPass(run.path, options, backend, blocks)


def _same(rows: np.ndarray, before: np.ndarray, limit: float) -> bool:
    return compared("", rows[None], before[None], limit, 0.0).same


def _spread(size: int, examples: int) -> tuple[int, ...]:
    """Return positions spread over a batch, including the first and the last."""
    count = min(size, max(1, examples))
    return tuple(np.unique(np.linspace(0, size - 1, count).round().astype(int)).tolist())


def _in_batch(
    backend: TorchBackend,
    run: CaptureRun,
    queries: QueryPass,
    step: Step,
    batch: Any,
    size: int,
    mask: Any,
) -> tuple[dict[str, np.ndarray], float, np.ndarray | None, float | np.ndarray | None]:
    """Return the rows of a batch, its loss, the losses of examples if known, and the scale."""
    if run._batch is not None:
        raise CaptureError(
            "check was called inside `with run(...)`. Hint: call it before or after the `with`."
        )
    active = queries.batch(BatchRequest(size, mask=mask))
    assert isinstance(active, BatchCapture)
    active.skip_interactions()  # examples alone show them, and the table says where
    with run._capturing(active):
        loss, each = loss_of(step(backend.step_model, batch), size)
        if each is not None:
            active.declare_sum()
        active.backward(loss)
    rows = queries.finish(active, np.arange(size)).whole().rows()
    several = None if each is None else to_numpy(each.double())
    (scale,) = active.scales
    by = to_numpy(scale) if isinstance(scale, Tensor) else scale
    return rows, float(loss.detach()), several, by
