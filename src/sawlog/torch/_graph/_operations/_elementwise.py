"""Gradients of weights in operations on single elements, and in layer norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import call, sum_to
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations._example_labels import Where, spread
from sawlog.torch._graph._operations._weight_use import ArrivedGradient, Found, wide


def elementwise(arrived: ArrivedGradient) -> Found:
    """Differentiate an operation that broadcasts the weight to its output."""
    found = call(arrived.use.node, arrived.grad)[arrived.use.place]
    if found is None or found.shape != arrived.grad.shape or found.is_sparse:
        return None
    return summed(found, arrived.where, arrived.batch, arrived.shape)


def concatenated(arrived: ArrivedGradient) -> Found:
    """Differentiate a concatenation: labels are routed to the weight as gradients are."""
    found = call(arrived.use.node, arrived.grad)[arrived.use.place]
    labels = spread(arrived.where, arrived.grad.shape, arrived.batch, arrived.grad.device)
    own = call(arrived.use.node, labels.to(torch.float64))[arrived.use.place]
    if found is None or own is None:
        return None
    return summed(found, own.round().long(), arrived.batch, arrived.shape)


def normalised(arrived: ArrivedGradient) -> Found:
    """Differentiate ``normalised * weight + bias`` over the last axes."""
    node = arrived.use.node
    found = arrived.grad
    if arrived.use.place == 1:
        found = found * (node._saved_input - node._saved_result1) * node._saved_result2
    return (
        None
        if arrived.use.place == 0
        else summed(found, arrived.where, arrived.batch, arrived.shape)
    )


def summed(found: Tensor, where: Where, batch: int, shape: Sequence[int]) -> Tensor:
    """Return ``[batch, *shape]``: sums over the elements of each example.

    Args:
        found: elements, in a shape that ``shape`` broadcasts to.
        where: the example of each.
        batch: the number of examples.
        shape: the shape of the tensor that was broadcast.
    """
    found = wide(found)
    if isinstance(where, ExampleLayout):
        own = where.axis - (found.dim() - len(shape))
        if own < 0 or (shape[own] == 1 and found.shape[where.axis] != 1):
            return sum_to(where.split(found, batch), shape, first=1)
    labels = spread(where, found.shape, batch, found.device)
    size = math.prod(shape)
    places = torch.arange(size, device=found.device).reshape(tuple(shape)).expand(found.shape)
    there = torch.where(labels < 0, torch.zeros_like(found), found)
    rows = there.new_zeros(batch * size)
    rows.index_add_(0, (labels.clamp(min=0) * size + places).flatten(), there.flatten())
    return rows.reshape(batch, *shape)
