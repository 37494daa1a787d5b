"""Gradients of the weights of convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import signed
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations._elementwise import summed
from sawlog.torch._graph._operations._weight_use import ArrivedGradient, Found


def convolved(arrived: ArrivedGradient) -> Found:
    """Differentiate a convolution; the examples become groups of one convolution."""
    node, batch = arrived.use.node, arrived.batch
    if (
        not isinstance(arrived.where, ExampleLayout)
        or arrived.where.axis != 0
        or arrived.use.place == 0
    ):
        return None
    if arrived.use.place == 2:
        return summed(arrived.grad.flatten(2).sum(2), arrived.where, batch, arrived.shape)
    if node._saved_transposed:
        return None
    inputs, grad = (_as_channels(each, arrived) for each in (node._saved_input, arrived.grad))
    weight = node._saved_weight.repeat(batch, *(1,) * (node._saved_weight.dim() - 1))
    every = [
        [signed(each) for each in getattr(node, f"_saved_{name}")]
        for name in ("stride", "padding", "dilation")
    ]
    extra = [signed(each) for each in node._saved_output_padding]
    groups = int(node._saved_groups) * batch
    _, found, _ = torch.ops.aten.convolution_backward(
        grad, inputs, weight, None, *every, False, extra, groups, [False, True, False]
    )
    return found.reshape(batch, *arrived.shape)


def _as_channels(tensor: Tensor, arrived: ArrivedGradient) -> Tensor:
    """Return ``[positions, batch * channels, ...]``."""
    assert isinstance(arrived.where, ExampleLayout)
    return arrived.where.split(tensor, arrived.batch).movedim(0, 1).flatten(1, 2)
