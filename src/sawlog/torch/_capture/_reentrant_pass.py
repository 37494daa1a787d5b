"""Capture through reentrant checkpointing, which builds parts of the graph in the backward pass.

The graph cannot be read in advance, so layouts are guessed from shapes, and the rows are compared
with what the backward pass added to ``.grad``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._capture._batch_logs import BatchLogs
from sawlog.torch._hooks._grad_state import added, copied
from sawlog.torch._hooks._hooks import Hooks, LayerCall
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._terms import Scale, agreed
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import precision_of, projected_gradient


def capture_reentrant(
    roots: Roots,
    run: Callable[[], Any] | None,
    watched: Watched,
    hooks: Hooks,
    loss: LossReader,
    logs: BatchLogs,
) -> None:
    """Run a backward pass, and capture it.

    Args:
        roots: the loss.
        run: the backward pass of the user; None if there is only ``run.backward(loss)``.
        watched: the layers.
        hooks: on the modules.
        loss: reads the scale of the examples.
        logs: receives the gradients.

    Raises:
        CaptureError: it cannot be captured, or the rows do not sum to the gradient of the batch.
    """
    if run is None:
        raise CaptureError(
            "run.backward(loss) cannot run through reentrant checkpointing. Hint: "
            "checkpoint(..., use_reentrant=False), or loss.backward()."
        )
    scale = agreed(loss.terms(roots))
    if scale is None:
        raise CaptureError(
            "The terms of the loss are joined in different ways, and reentrant "
            "checkpointing hides which gradient is of which term. Hint: use_reentrant=False."
        )
    before = {name: copied(each.grad) for name, each in watched.parameters.items()}
    every = frozenset(block.name for block in watched.blocks)
    hooks.reentrant = True

    def listen(call: LayerCall, grad: Tensor) -> None:
        layout = logs.tensors.guessed(call.unit, tuple(grad.shape))
        logs.add_call(call, grad, layout, scale, every)

    try:
        with hooks.listening(listen):
            run()
    finally:
        hooks.reentrant = False
    _check_sums(before, scale, watched, logs)


def _check_sums(
    before: Mapping[str, Tensor | None], scale: Scale, watched: Watched, logs: BatchLogs
) -> None:
    """Compare rows with what a backward pass added to the gradients of parameters."""
    rows = logs.row_builder
    if not rows.complete:
        return
    changes = {name: added(before[name], p.grad) for name, p in watched.parameters.items()}
    for block in watched.blocks:
        want = projected_gradient(rows, block, changes, watched.parameters)
        got = rows.total(block, scale, logs.factor)
        dtype = watched.parameters[block.name].dtype
        size = float(want.norm()) + float(got.norm())
        if float((got - want).norm()) > precision_of(dtype) * size:
            raise CaptureError(
                f"The gradients of the examples for {block.name!r} do not add up to that of "
                "the batch: it is used in a way that cannot be seen through reentrant "
                "checkpointing. Hint: checkpoint(..., use_reentrant=False)."
            )
