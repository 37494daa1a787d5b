"""Gradients of weights in products of matrices, stacks of matrices and groups of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Node, call
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations._elementwise import summed
from sawlog.torch._graph._operations._example_labels import widened
from sawlog.torch._graph._operations._weight_use import ArrivedGradient, Factors, Found, wide


def product(arrived: ArrivedGradient) -> Found:
    """Differentiate ``first @ second``, or ``beta * added + alpha * first @ second``."""
    node, added = arrived.use.node, arrived.use.name in ("Addmm", "Baddbmm", "Addbmm")
    if added and arrived.use.place == 0:
        found = arrived.grad if node._saved_beta == 1 else arrived.grad * node._saved_beta
        return summed(found, arrived.where, arrived.batch, arrived.shape)
    is_first = arrived.use.place == int(added)
    other = other_factor(node, is_first)
    if other is None:
        return None
    grad = arrived.grad * node._saved_alpha if added and node._saved_alpha != 1 else arrived.grad
    if grad.dim() == 2:
        return _of_matrices(arrived, grad, other, is_first)
    return _of_stacks(arrived, grad, other, is_first)


def other_factor(node: Node, is_first: bool) -> Tensor | None:
    """Return the factor that the weight is multiplied with; None if it is sparse or unknown."""
    names = ("mat2", "batch2") if is_first else ("mat1", "batch1", "self")
    every = (getattr(node, f"_saved_{name}", None) for name in names)
    other = next((each for each in every if each is not None), None)
    return other if other is not None and other.layout == torch.strided else None


def _of_matrices(arrived: ArrivedGradient, grad: Tensor, other: Tensor, is_first: bool) -> Found:
    """Differentiate a weight ``[rows, cols]``; the sum is over positions of the examples."""
    left, right = (grad.mT, other.mT) if is_first else (other, grad)
    axis = int(is_first)
    if isinstance(arrived.where, ExampleLayout):
        if arrived.where.axis != axis:
            return None
        lies = ExampleLayout(0, arrived.where.minor)
        return Factors(
            lies.split(wide(left), arrived.batch), lies.split(wide(right), arrived.batch)
        )
    labels = arrived.labels(axis)
    return None if labels is None else outer_sums(left, right, labels, arrived.batch)


def _of_stacks(arrived: ArrivedGradient, grad: Tensor, other: Tensor, is_first: bool) -> Found:
    """Differentiate ``[n, rows, cols]``: a matrix for each example, or positions in each."""
    if not isinstance(arrived.where, ExampleLayout):
        return None
    axis = 2 if is_first else 1
    if arrived.where.axis == 0:  # the weight was expanded to the batch
        found = call(arrived.use.node, arrived.grad)[arrived.use.place]
        return None if found is None else summed(found, arrived.where, arrived.batch, arrived.shape)
    if arrived.where.axis != axis:
        return None
    grad, other = (
        arrived.where.split(grad, arrived.batch),
        ExampleLayout(axis, arrived.where.minor).split(other, arrived.batch),
    )
    grad, other = wide(grad), wide(other)
    return grad @ other.mT if is_first else other.mT @ grad


def grouped(arrived: ArrivedGradient) -> Found:
    """Differentiate a grouped product: rows ``[n, cols]``, weights ``[groups, cols, rows]``."""
    node = arrived.use.node
    inputs, ends = node._saved_self, node._saved_offs
    if arrived.use.place != 1 or inputs is None or ends is None or inputs.dim() != 2:
        return None
    labels = arrived.labels(0)
    if labels is None:
        return None
    places = torch.arange(len(inputs), device=ends.device)
    group = torch.searchsorted(ends.long(), places, right=True)
    count = len(ends)
    labels = torch.where(group < count, labels, -1)
    number = torch.where(labels < 0, labels, labels * count + group)
    rows = outer_sums(inputs, arrived.grad, number, arrived.batch * count)
    return rows.reshape(arrived.batch, count, *rows.shape[1:])


def outer_sums(left: Tensor, right: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return ``[count, rows, cols]``: sums of outer products over positions of the same label.

    Positions are sorted by label, so no padding is needed.

    Args:
        left, right: ``[positions, rows]`` and ``[positions, cols]``.
        labels: ``[positions]``, -1 for positions to leave out.
        count: the number of labels.
    """
    left, right = wide(left), wide(right)
    order = labels.argsort(stable=True)
    sizes = torch.bincount(labels + 1, minlength=count + 1).tolist()
    left, right = left[order], right[order]
    rows = left.new_zeros(count, left.shape[1], right.shape[1])
    start = sizes[0]
    for number, size in enumerate(sizes[1:]):
        if size:
            part = slice(start, start + size)
            torch.mm(left[part].mT, right[part], out=rows[number])
            start += size
    return rows


def times_vector(arrived: ArrivedGradient) -> Found:
    """Differentiate ``matrix @ vector`` with respect to the vector."""
    matrix = arrived.use.node._saved_self
    if arrived.use.place != 1 or matrix is None:
        return None
    return summed(
        arrived.grad[:, None] * matrix, widened(arrived.where, 2), arrived.batch, arrived.shape
    )
