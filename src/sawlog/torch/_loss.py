"""How a loss joins the examples of a batch, read from its graph.

The gradient of an example is what the same program gives for a batch of that example alone. Where
the loss is a mean over the examples, what flows back is that divided by their number; where it is a
mean over positions that count, as in language models with padding, divided by the number of all of
them and multiplied by its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sawlog.errors import ArgumentError

Scale = float | Tensor

_THROUGH = {"MulBackward0", "MulBackward1", "NegBackward0", "AddBackward0", "SubBackward0"}
_SHAPES = {
    "ViewBackward0",
    "ReshapeAliasBackward0",
    "UnsafeViewBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "ToCopyBackward0",
    "CloneBackward0",
    "AliasBackward0",
}


class _Unclear(Exception):
    """The graph does not tell."""


def scale_of(loss: Tensor, batch: int) -> Scale:
    """By what the gradients of each example are to be multiplied: a number, or one for each.

    Raises:
        ArgumentError: the graph of the loss does not tell.
    """
    try:
        if loss.ndim:
            raise _Unclear(f"the loss has the shape {tuple(loss.shape)}")
        return _scale(loss.grad_fn, batch)
    except _Unclear as error:
        raise ArgumentError(
            f"It cannot be seen from the loss whether it is a mean or a sum over the {batch} "
            f'examples: {error}. Hint: say it, as in run.setup(reduction="mean"), or "sum"; '
            '"tokens" for a mean over all positions of the mask.'
        ) from None


def _scale(node: Any, batch: int) -> Scale:
    if node is None:
        raise _Unclear("it does not depend on any parameter")
    name = node.name()
    if name in ("NllLossBackward0", "NllLoss2DBackward0"):
        return _of_nll(node, batch)
    if hasattr(node, "_saved_reduction"):
        return _of_loss(node, batch)
    if name in ("MeanBackward0", "MeanBackward1"):
        return _of_reduction(node, batch, mean=True)
    if name in ("SumBackward0", "SumBackward1"):
        return _of_reduction(node, batch, mean=False)
    if name == "DivBackward0":
        return _of_division(node, batch)
    if name in _THROUGH or name in _SHAPES:
        return _agreed([_scale(below, batch) for below, _ in node.next_functions if below], name)
    raise _Unclear(f"it comes from {name}")


def _agreed(scales: list[Scale], name: str) -> Scale:
    if not scales:
        raise _Unclear(f"{name} has no graph")
    first = scales[0]
    for other in scales[1:]:
        if not torch.equal(torch.as_tensor(first), torch.as_tensor(other)):
            raise _Unclear(f"the terms of a sum ({name}) are joined in different ways")
    return first


def _of_loss(node: Any, batch: int) -> Scale:
    """Losses that have a target and a reduction of their own."""
    if node._saved_reduction == 0:
        raise _Unclear(f"{node.name()} joins nothing")
    return float(batch) if node._saved_reduction == 1 else 1.0


def _of_nll(node: Any, batch: int) -> Scale:
    """The mean is over targets that are not ignored, and each counts by the weight of its class."""
    if node._saved_reduction != 1:
        return _of_loss(node, batch)
    target, weight = node._saved_target, node._saved_weight
    if target.numel() % max(batch, 1):
        raise _Unclear(f"the loss has {target.numel()} targets for {batch} examples")
    ignored = node._saved_ignore_index
    ignored = ignored - 2**64 if ignored >= 2**63 else ignored
    counts = target != ignored
    if weight is None and bool(counts.all()):
        return float(batch)
    each = counts.to(torch.float64)
    if weight is not None:
        each = weight.double()[target.clamp(min=0)] * each
    own = each.reshape(batch, -1).sum(1)
    return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))


def _of_reduction(node: Any, batch: int, *, mean: bool) -> Scale:
    sizes = _sizes(node)
    dims = getattr(node, "_saved_dim", None)
    reduced = range(len(sizes)) if dims is None else [_signed(d) % len(sizes) for d in dims]
    if not sizes or 0 not in reduced or sizes[0] % batch:  # not the axis of the examples
        return _agreed([_scale(below, batch) for below, _ in node.next_functions if below], "")
    return float(batch) if mean else 1.0


def _sizes(node: Any) -> tuple[int, ...]:
    for name in ("_saved_self_sym_sizes", "_saved_self_sizes"):
        if hasattr(node, name):
            return tuple(int(size) for size in getattr(node, name))
    raise _Unclear(f"{node.name()} does not say what it joins")


def _signed(dim: int) -> int:
    return dim - 2**64 if dim >= 2**63 else dim


def _of_division(node: Any, batch: int) -> Scale:
    """A sum that is divided by the number of examples is a mean."""
    other = node._saved_other
    (above, _), *rest = node.next_functions
    if rest and rest[0][0] is not None:
        raise _Unclear("it is divided by something that depends on parameters")
    scale = _scale(above, batch)
    number = float(other) if other is not None and other.numel() == 1 else math.nan
    if scale == 1.0 and number == batch:
        return float(batch)
    if scale == 1.0 and not number < batch:
        raise _Unclear(f"it is a sum divided by {number:g}")
    return scale
