"""Masks, weights and numbers that a loss was multiplied with, read from its graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, operation, signed

LINEAR = {
    "Mul", "Div", "Neg", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy",
    "Clone", "Sum", "MaskedFill", "Where", "Expand",
}  # fmt: skip


_MASKED = {
    "Mul",
    "MaskedFill",
    "Where",
    "Neg",
    "View",
    "Sum",
    "Squeeze",
    "ToCopy",
    "NllLoss",
    "Div",
}


def is_number(other: Any) -> bool:
    """Return whether an operand is a number, or a tensor with one element."""
    return not isinstance(other, Tensor) or other.numel() == 1


def number_of(node: Node) -> float | None:
    """Return the number that a tensor is multiplied or divided by; None if it is a tensor."""
    other: Any = getattr(node, "_saved_other", None)
    other = getattr(node, "_saved_self", None) if other is None else other
    return float(other) if other is not None and is_number(other) else None


def inner_numbers(edge: Edge) -> list[tuple[str, float]]:
    """Return the numbers that a tensor was multiplied or divided by before it is joined."""
    found = []
    node, _ = edge
    while True:
        name = operation(node)
        children = [child for child, _ in node.next_functions if child is not None]
        if name not in LINEAR or len(children) != 1:
            break
        other = getattr(node, "_saved_other", None) if name in ("Mul", "Div") else None
        if other is not None and is_number(other):
            found.append((name.lower(), float(other)))
        node = children[0]
    return found


def source_of(edge: Edge) -> Node:
    """Return the node whose output a tensor is made of by masks, numbers and moves alone."""
    node, _ = edge
    while operation(node) in LINEAR:
        children = [child for child, _ in node.next_functions if child is not None]
        if len(children) != 1:
            break
        node = children[0]
    return node


def masks_of(edge: Edge, labels: Tensor, batch: int) -> list[Tensor]:
    """Return the sum over each example of every mask that a tensor was multiplied by."""
    found: list[Tensor] = []
    node, _ = edge
    while node is not None and operation(node) in _MASKED:
        for mask in _saved_masks(node):
            own = by_example(mask, labels, batch)
            if own is not None:
                found.append(own)
        children = [child for child, _ in node.next_functions if child is not None]
        node = children[0] if children else None
    return found


def _saved_masks(node: Node) -> list[Tensor]:
    name = operation(node)
    if name == "MaskedFill":
        return [~node._saved_mask]
    if name == "Where":
        return [node._saved_condition, ~node._saved_condition]
    if name == "Mul":
        return factors_of(node)
    if name == "NllLoss":
        return [node._saved_target != signed(node._saved_ignore_index)]
    return []


def factors_of(node: Node) -> list[Tensor]:
    """Return the constant tensors in a product; empty if both factors depend on parameters."""
    if sum(child is not None for child, _ in node.next_functions) != 1:
        return []
    names = ("_saved_other", "_saved_self", "_saved_tensor")
    every = [getattr(node, name, None) for name in names]
    return [each for each in every if isinstance(each, Tensor) and each.dim()]


def by_example(mask: Tensor, labels: Tensor, batch: int) -> Tensor | None:
    """Return the sum of a mask over each example; None if its shape does not fit the labels."""
    if mask.shape[: labels.dim()] != labels.shape:
        if mask.numel() % max(labels.numel(), 1) or not labels.numel():
            return None
        if mask.shape[:1] != labels.shape[:1]:
            return None
    if not labels.numel():  # a mask chose nothing
        return torch.zeros(batch, dtype=torch.float64)
    each = mask.detach().double().reshape(labels.numel(), -1).sum(1)
    return sum_by_example(each, labels.to(each.device), batch)


def sum_by_example(each: Tensor, labels: Tensor, batch: int) -> Tensor:
    """Return the sum over the rows of each example."""
    return torch.bincount(labels.flatten(), each.flatten(), minlength=batch)
