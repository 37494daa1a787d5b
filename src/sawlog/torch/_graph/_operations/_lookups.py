"""Gradients of tables in lookups of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import signed
from sawlog.torch._graph._operations._example_labels import labels_along
from sawlog.torch._graph._operations._weight_use import ArrivedGradient, Found, wide


def looked_up(arrived: ArrivedGradient) -> Found:
    """Differentiate a lookup of rows of a table."""
    numbers = _row_numbers(arrived)
    if numbers is None or arrived.grad.shape[numbers.dim() :] != arrived.shape[1:]:
        return None
    axes = tuple(range(numbers.dim()))
    labels = labels_along(arrived.where, arrived.grad, axes, arrived.batch)
    if labels is None:
        return None
    labels, numbers = labels.flatten(), numbers.flatten().to(labels.device)
    kept = labels >= 0
    if arrived.use.name == "Embedding":
        kept &= numbers != arrived.use.node._saved_padding_idx
    grad = wide(arrived.grad).reshape(len(numbers), -1)
    grad = torch.where(kept[:, None], grad, torch.zeros_like(grad))
    rows = grad.new_zeros(arrived.batch * arrived.shape[0], grad.shape[1])
    numbers = numbers % arrived.shape[0]
    rows.index_add_(0, labels.clamp(min=0) * arrived.shape[0] + numbers, grad)
    return rows.reshape(arrived.batch, *arrived.shape)


def _row_numbers(arrived: ArrivedGradient) -> Tensor | None:
    """Return the indices of the rows that were looked up; None for another kind of index."""
    node, name = arrived.use.node, arrived.use.name
    if name == "Embedding":
        return None if node._saved_scale_grad_by_freq else node._saved_indices
    if name == "IndexSelect":
        return node._saved_index if signed(node._saved_dim) % len(arrived.shape) == 0 else None
    first, *more = node._saved_indices
    if first is None or first.dtype == torch.bool or any(each is not None for each in more):
        return None
    return first
