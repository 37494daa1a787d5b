"""Helpers of rules: arguments by position or keyword, dtypes, the axis of the examples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.errors import ArgumentError
from sawlog.torch._layers._rule import Use


def argument(use: Use, place: int, name: str, default: Any = None) -> Any:
    """Return an argument of the module, by position or keyword."""
    return use.args[place] if place < len(use.args) else use.kwargs.get(name, default)


def own(module: nn.Module, *names: str) -> bool:
    """Return whether these are parameters of the module itself, of a known shape.

    They are not if the layer was created without them, or computes them from others (as
    ``torch.nn.utils.parametrizations.weight_norm`` does).
    """
    found = [module._parameters.get(name) for name in names]
    return all(one is not None and not nn.parameter.is_lazy(one) for one in found)


def refuse(module: nn.Module, why: str, hint: str) -> ArgumentError:
    """Return the error that says why a module is not covered."""
    return ArgumentError(f"{type(module).__name__} is not covered: {why}. Hint: {hint}.")


def working_dtype(grad: Tensor) -> torch.dtype:
    """Return the dtype to compute in: that of the gradient, and at least float32."""
    return torch.promote_types(grad.dtype, torch.float32)


def widened(tensor: Tensor, use: Use) -> Tensor:
    """Return a tensor in the dtype to compute in."""
    return tensor.to(working_dtype(use.grad))


def by_example(tensor: Tensor, use: Use, features: int, axis: int | None = None) -> Tensor:
    """Return ``[batch, positions, *features]``, where the last ``features`` axes are features.

    The axis of the examples is that of the use, unless the layer defines its own. It may be ``k``
    times as long as the batch, with ``k`` positions of each example.

    Raises:
        ArgumentError: the length of the axis of the examples is not a multiple of ``batch``.
    """
    last = tensor.dim() - features
    leading, trailing = tensor.shape[:last], tensor.shape[last:]
    axis = use.axis if axis is None else axis
    axis = axis if axis < len(leading) else 0
    if not leading or not _divides(use.batch, leading[axis]):
        raise ArgumentError(
            f"A tensor of shape {tuple(tensor.shape)} has no axis for {use.batch} examples: axis "
            f"{axis} should have {use.batch}, or a multiple of that. Probably the module was "
            "called once for all examples, and its output broadcast. Hint: call it with the "
            f"examples as axis {axis}, by `x.expand({use.batch}, ...)`, or leave this module "
            "out."
        )
    each = leading[axis] // max(use.batch, 1)
    tensor = tensor.movedim(axis, 0)
    positions = each * math.prod(tensor.shape[1:last])
    minor = use.axis == 1 if use.minor is None else use.minor
    if minor and each > 1:  # flattened from [k, batch]: the examples are the inner ones
        rest = tensor.shape[1:]
        tensor = tensor.reshape(each, use.batch, *rest).movedim(1, 0)
    return tensor.reshape(use.batch, positions, *trailing)


def _divides(batch: int, size: int) -> bool:
    return size == batch if batch == 0 else size > 0 and size % batch == 0
