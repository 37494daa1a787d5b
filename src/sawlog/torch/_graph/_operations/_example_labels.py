"""The example that each element of a gradient belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._example_layout import ExampleLayout

Where = ExampleLayout | Tensor
"""Where the examples are in a tensor: a layout, or a label for each element, -1 for none."""


def labels_along(where: Where, grad: Tensor, axes: Sequence[int], batch: int) -> Tensor | None:
    """Return the example of each index of some axes; None if it depends on other axes too."""
    shape = [grad.shape[axis] for axis in axes]
    if isinstance(where, ExampleLayout):
        if where.axis not in axes:
            return None
        own = axes.index(where.axis)
        numbers = torch.arange(batch, device=grad.device)
        return ExampleLayout(own, where.minor).spread(numbers, shape).expand(shape)
    others = [axis for axis in range(grad.dim()) if axis not in axes]
    if not others:
        return where
    if not where.numel():
        return where.new_full(shape, -1)
    most = where.amax(others, keepdim=True)
    if bool(((where != most) & (where >= 0)).any()):
        return None
    return most.reshape(shape)


def spread(where: Where, shape: Sequence[int], batch: int, device: Any) -> Tensor:
    """Return the example of each element."""
    if isinstance(where, ExampleLayout):
        numbers = torch.arange(batch, device=device)
        return where.spread(numbers, shape).expand(tuple(shape))
    return where


def widened(where: Where, axes: int) -> Where:
    """Return the labels for a tensor with more axes at the end."""
    if isinstance(where, ExampleLayout):
        return where
    return where.reshape(*where.shape, *(1,) * (axes - where.dim()))
