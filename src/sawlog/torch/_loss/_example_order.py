"""Refuse operations just before the loss that change the order of the examples.

The graph does not contain the labels, so it is unknown whether they follow that order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import Edge, operation, shape_of, signed
from sawlog.torch._loss._examples import KEEPS_ROWS, RESHAPES, Examples, widened

_MORE = {"Gelu", "Silu", "Elu", "LeakyRelu", "Expand", "T", "Transpose", "Permute"}
_PUTS = {"IndexPut", "IndexPutImpl", "IndexCopy", "IndexAdd", "Scatter", "ScatterAdd"}
_PICKS = {"Index", "IndexSelect", "Gather", "Flip", "Roll", "Sort", "Topk"}
_STEPS = 64


def check_order(edge: Edge, examples: Examples) -> None:
    """Check the operations that keep rows between a term of the loss and the model.

    Raises:
        CaptureError: one of them changes the order of the examples.
    """
    stack, seen = [edge[0]], {edge[0]}
    while stack and len(seen) < _STEPS:
        node = stack.pop()
        name = operation(node)
        picks = name in _PICKS or name in _PUTS
        if picks and not _keeps(node, name, examples):
            raise CaptureError(
                f"An operation ({node.name()}) changes the order of the examples just before the "
                "loss. Whether the labels follow is unknown, so it is not clear which gradient "
                "belongs to which id. Hint: return the output of the model in the order of the "
                "ids, for example sort the batch before the ids are taken; or compute the loss of "
                "each example before reordering."
            )
        if picks or name in KEEPS_ROWS or name in RESHAPES or name in _MORE:
            for child, _ in node.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    stack.append(child)


def _keeps(node: Any, name: str, examples: Examples) -> bool:
    child = node.next_functions[0]
    if child[0] is not None and examples.is_table(child):
        return True
    shape = shape_of((node, 0)) if child[0] is None else shape_of(child)
    labels = examples.exact(shape) if shape else None
    if labels is None and child[0] is not None:
        labels = examples.of(child)
    if labels is None:
        return True
    if name in _PUTS:
        return _puts_in_order(node, labels)
    if name == "Index":
        return _indexes_in_order(node, labels, shape)
    if name in ("Flip", "Roll"):
        dims = [signed(each) % len(shape) for each in node._saved_dims]
        return not any(dim < labels.dim() and bool(labels.diff(dim=dim).any()) for dim in dims)
    dim = signed(node._saved_dim) % len(shape)
    if dim >= labels.dim():
        return True
    index = node._saved_index if hasattr(node, "_saved_index") else node._saved_indices
    if name == "IndexSelect":
        return _in_order(labels.index_select(dim, index.flatten().to(labels.device)), labels)
    wide = widened(labels, shape, len(shape))
    found = wide.gather(dim, index.to(wide.device))
    there = wide[tuple(slice(size) for size in found.shape)]
    return torch.equal(found, there)


def _indexes_in_order(node: Any, labels: Tensor, shape: tuple[int, ...]) -> bool:
    places = node._saved_indices
    if all(each is None or each.dtype == torch.bool for each in places):
        return True
    covered = [1 if p is None or p.dtype != torch.bool else p.dim() for p in places]
    labels = widened(labels, shape, max(labels.dim(), sum(covered)))
    index = tuple(slice(None) if p is None else p.to(labels.device) for p in places)
    numbers = torch.arange(math.prod(labels.shape)).reshape(labels.shape)[index].flatten()
    return _in_order(labels[index], labels) or bool((numbers.diff() >= 0).all())


def _puts_in_order(node: Any, labels: Tensor) -> bool:
    if hasattr(node, "_saved_indices"):
        first = node._saved_indices[0]
    else:
        dim = signed(node._saved_dim) % max(1, len(shape_of((node, 0))))
        first = node._saved_index if dim == 0 else None
    if first is None or first.dtype == torch.bool or not first.numel():
        return True
    first = first.reshape(first.shape[0], -1) if first.dim() else first.reshape(1, 1)
    labels = labels if labels.dim() == 1 else labels[:, 0]
    return bool((labels.to(first.device)[first].diff(dim=0) >= 0).all())


def _in_order(found: Tensor, labels: Tensor) -> bool:
    same = found.shape == labels.shape and torch.equal(found, labels)
    return same or bool((found.flatten().diff() >= 0).all())
