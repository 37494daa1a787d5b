"""Parts of ``run.check``: losses of a step, gradients by plain autograd, likely causes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sawlog._array_device import to_numpy
from sawlog.capture._backend import Step
from sawlog.capture._check import Comparison
from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.torch._rows._block_matrix import block_matrix
from sawlog.torch._rows._projectors import Projectors

RANK = 16
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
_COARSE = 0.1  # for bfloat16, float16 and autocast
_RANDOM = ("Dropout", "DropPath", "StochasticDepth", "GaussianNoise")


def loss_of(value: Any, size: int) -> tuple[Tensor, Tensor | None]:
    """Return the loss to differentiate, and the losses of each example if a step returned these.

    Raises:
        ArgumentError: the step returned something else.
    """
    found = value
    if not isinstance(found, Tensor):
        found = value.get("loss") if isinstance(value, Mapping) else getattr(value, "loss", None)
    if isinstance(found, Tensor) and found.numel() == 1 and (found.ndim == 0 or size != 1):
        return found.reshape(()), None
    if isinstance(found, Tensor) and found.shape == (size,):
        return found.sum(), found
    what = list(found.shape) if isinstance(found, Tensor) else type(value).__name__
    raise ArgumentError(
        "step(model, batch) must return a loss, or the losses of each example, here "
        f"[{size}]; got {what}."
    )


def plain_gradients(
    model: nn.Module,
    step: Step,
    batch: Any,
    blocks: Sequence[Block],
    named: Mapping[str, Tensor],
    size: int = 1,
) -> tuple[dict[str, Tensor], float]:
    """Return the gradient of each block for a batch by plain autograd, and the loss."""
    loss, _ = loss_of(step(model, batch), size)
    names = [name for block in blocks for name in block.parameters]
    if not loss.requires_grad:
        grads: Sequence[Tensor | None] = [None] * len(names)
    else:
        grads = torch.autograd.grad(loss, [named[name] for name in names], allow_unused=True)
    each = {
        name: (torch.zeros_like(named[name]) if grad is None else grad).detach()[None]
        for name, grad in zip(names, grads, strict=True)
    }
    return {block.name: block_matrix(block, each)[0] for block in blocks}, float(loss.detach())


def projected(block: Block, whole: Tensor, projectors: Projectors) -> np.ndarray:
    """Return the projected gradient of a block."""
    left, right = projectors.projection(block, whole.device, torch.float64)
    whole = whole.double()
    if left is not None:
        whole = left.mT @ whole
    if right is not None:
        whole = whole @ right
    return to_numpy(whole)


def reasons_for(model: nn.Module, layers: Sequence[Comparison], repeats: bool) -> list[str]:
    """Return likely causes why examples in the batch differ from examples alone."""
    found = []
    random = _in_training(model, _RANDOM)
    if random:
        found.append(f"Dropout is active ({random}): every pass differs. Hint: model.eval().")
    norms = _in_training(model, ("BatchNorm", "SyncBatchNorm"))
    if norms:
        found.append(
            f"Batch norms are in train mode ({norms}), so examples depend on each other. "
            "Hint: model.eval()."
        )
    if not repeats and not random:
        found.append("The same example has another gradient the second time: step is random.")
    wrong = [layer for layer in layers if not layer.same]
    factors = {round(layer.factor, 6) for layer in wrong}
    scaled = wrong and all(layer.verdict.startswith("off by") for layer in wrong)
    if scaled and len(factors) == 1 and len(wrong) == len(layers):
        found.append(
            "All gradients differ by one factor: the loss is scaled, or joins examples in another "
            'way than run.setup(reduction=...) declares. Hint: reduction="auto", or return the '
            "losses of each example."
        )
    elif wrong and not found and not any(layer.examples_differ for layer in wrong):
        found.append(
            "The gradients of the examples are right but do not add up to that of the batch: a "
            "hook changes gradients of parameters, or step does more than return a loss."
        )
    elif wrong and not found:
        found.append(
            "The examples of a batch depend on each other, or are not separated: statistics over "
            "the batch, a loss over pairs, another axis for the examples (watch(batch_axis=1)), or "
            "padding that is not masked."
        )
    return found


def _in_training(model: nn.Module, kinds: Sequence[str]) -> str:
    names = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if module.training
        and any(kind in type(module).__name__ for kind in kinds)
        and getattr(module, "p", getattr(module, "drop_prob", 1.0))
    ]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@contextlib.contextmanager
def autocast_seen(modules: Sequence[nn.Module]) -> Iterator[list[bool]]:
    """Yield a list that is not empty once one of the modules ran in mixed precision."""
    seen: list[bool] = []

    def look(module: nn.Module, args: Any) -> None:
        del args
        own = next(module.parameters(), None)
        if own is not None and torch.is_autocast_enabled(own.device.type):
            seen.append(True)

    handles = [module.register_forward_pre_hook(look) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def tolerance_of(parameters: Sequence[Tensor], mixed: bool) -> float:
    """Return the relative error that rounding may cause."""
    if mixed:
        return _COARSE
    return max((_TOLERANCE.get(p.dtype, _COARSE) for p in parameters), default=_COARSE)


def rounding_of(parameters: Sequence[Tensor]) -> float:
    """Return how much of the largest gradients rounding leaves in those that are exactly 0.

    Such gradients are sums that cancel: of a bias before a softmax over positions, say.
    """
    exact = bool(parameters) and all(p.dtype == torch.float64 for p in parameters)
    return float(torch.finfo(torch.float64 if exact else torch.float32).eps)


@contextlib.contextmanager
def state_restored(model: nn.Module) -> Iterator[None]:
    """Restore the random state and the buffers of a model at the end of the ``with``."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if not buffer.is_meta}
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=[each.index or 0 for each in devices]):
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                if name in before and not torch.equal(buffer, before[name]):
                    buffer.copy_(before[name])
