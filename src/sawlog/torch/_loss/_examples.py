"""Find which rows of a tensor near the loss belong to which example, by reading the graph.

An axis of the length of the batch has the examples. For a longer one, the graph shows how it was
computed: by flattening ``[batch, positions]``, or by picking rows of a tensor whose examples are
known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.torch._graph._autograd_graph import ACCUMULATE, Edge, operation, shape_of, signed
from sawlog.torch._loss._masks import number_of

RESHAPES = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"}
KEEPS_ROWS = {  # the output has the rows of every input that is as long
    "Add", "Sub", "Rsub", "Reciprocal", "Mul", "Div", "Neg", "Pow", "Exp", "Log", "Sqrt", "Sigmoid",
    "Tanh", "Clone",
    "ToCopy", "Alias", "LogSoftmax", "Softmax", "MaskedFill", "Where", "LogSigmoid", "Clamp", "Abs",
    "ClampMin", "ClampMax", "Relu", "Softplus", "NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss",
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "HuberLoss", "Sum", "Mean", "Logsumexp",
    "Gather", "Norm", "LinalgVectorNorm", "CtcLoss", "Slice", "Select", "Xlogy", "Log1P", "Expm1",
}  # fmt: skip
_ROWS_OF_INPUT = {  # the output has the rows of this input
    "Addmm": 1, "Mm": 0, "NativeLayerNorm": 0, "Gelu": 0, "Silu": 0, "Elu": 0, "LeakyRelu": 0,
    "NativeDropout": 0, "Hardtanh": 0, "Hardswish": 0, "Mish": 0, "Prelu": 0, "FusedRmsNorm": 0,
}  # fmt: skip
_PERMUTES = {"Permute", "T", "Transpose"}
_EVEN = {"Neg", "Mul", "Div", "ToCopy", "Clone", "Alias"}  # do the same to all rows
_DEPTH = 24


class Examples:
    """Finds the examples in the tensors at edges of a graph.

    Args:
        batch: the number of examples.
        axis: their axis, 0 or 1.
        views: how many times the batch was concatenated with itself along that axis.
    """

    def __init__(self, batch: int, axis: int = 0, views: int = 1) -> None:
        self.batch, self.axis, self.views = batch, axis, views
        self.each = torch.arange(batch)  # the labels of a tensor with one row for each example
        self._tables: dict[Edge, bool] = {}
        self._unpicked: dict[Edge, int] = {}  # edges without picked rows, by depth
        self._unknown: dict[Edge, int] = {}  # edges with unknown examples, by depth

    def of(self, edge: Edge, depth: int = 0) -> Tensor | None:
        """Return the example of each row, in the shape of the first axes; None if unknown."""
        if depth > _DEPTH or self._unknown.get(edge, _DEPTH + 1) <= depth:
            return None
        found = self._found(edge, depth)
        if found is None:
            self._unknown[edge] = depth
        return found

    def _found(self, edge: Edge, depth: int) -> Tensor | None:
        shape = shape_of(edge)
        if not shape:
            return None
        picked = self._picked(edge, shape, depth)
        if picked is not None:
            return picked
        if self._has_lost_positions(edge, shape, depth):
            return self.each
        exact = self.exact(shape)
        if exact is not None:
            return exact
        found = self._below(edge, shape, depth)
        return self._viewed(shape) if found is None else found

    def _has_lost_positions(self, edge: Edge, shape: tuple[int, ...], depth: int) -> bool:
        """Return whether positions before the examples were summed, so that these come first now.

        The graph tells this only where both axes of the tensor have the length of the batch.
        """
        if self.axis == 0 or shape[:2] != (self.batch, self.batch):
            return False
        node, _ = edge
        if not node.next_functions:  # a leaf
            return False
        child, dims = node.next_functions[0], getattr(node, "_saved_dim", None)
        if operation(node) in ("Sum", "Mean") and child[0] is not None and dims:
            axes = {signed(dim) % len(shape_of(child)) for dim in dims}
            labels = self.of(child, depth + 1)
            if labels is not None and 0 in axes and not node._saved_keepdim:
                return labels.dim() == 2 and 1 not in axes
        found = self._below(edge, shape, depth)
        return found is not None and found.dim() == 1

    def of_groups(self, edge: Edge) -> Tensor | None:
        """Return the example of each loss where those of several groups were put one after another.

        So are the losses of chosen and of rejected answers. Nothing between may depend on the
        order; None if something does, or if no group was picked from the examples.
        """
        node, _ = edge
        while operation(node) in _EVEN and len(node.next_functions) <= 2:
            below = [child for child in node.next_functions if child[0] is not None]
            if len(below) != 1 or shape_of(below[0]) != shape_of(edge):
                return None
            if operation(node) in ("Mul", "Div") and number_of(node) is None:
                return None
            node = below[0][0]
        if operation(node) != "Cat" or signed(node._saved_dim) % len(shape_of((node, 0))):
            return None
        parts = [child for child in node.next_functions if child[0] is not None]
        picked = [self._picked(each, shape_of(each), 0) for each in parts]
        labels = [each for each in picked if each is not None and each.dim() == 1]
        if len(labels) < len(parts):
            return None
        found = torch.cat(labels)
        return found if len(found) == shape_of(edge)[0] else None

    def exact(self, shape: Sequence[int]) -> Tensor | None:
        """Return labels if the axis of the examples has the length of the batch."""
        if self.axis == 1 and len(shape) > 1 and shape[1] == self.batch:
            return torch.arange(self.batch).expand(shape[0], -1)
        return self.each if shape[0] == self.batch else None

    def _viewed(self, shape: Sequence[int]) -> Tensor | None:
        if self.views == 1:
            return None
        size, each = self.batch * self.views, torch.arange(self.batch).repeat(self.views)
        if self.axis == 1 and len(shape) > 1 and shape[1] == size:
            return each.expand(shape[0], -1)
        return each if shape[0] == size else None

    def _picked(self, edge: Edge, shape: tuple[int, ...], depth: int) -> Tensor | None:
        """Follow operations that keep rows down to rows that were picked by an index."""
        if self._unpicked.get(edge, _DEPTH + 1) <= depth:  # visit paths that meet once
            return None
        node, _ = edge
        name = operation(node)
        if name == "Index":
            return self._indexed(node, depth)
        if name == "MaskedSelect":
            return self._selected(node, depth)
        if name == "IndexSelect":
            return self._index_selected(node, depth)
        if name in KEEPS_ROWS:
            for child in node.next_functions:
                if child[0] is not None and depth < _DEPTH and shape_of(child)[:1] == shape[:1]:
                    found = self._picked(child, shape_of(child), depth + 1)
                    if found is not None and _fits(found, shape):
                        return found
        self._unpicked[edge] = depth
        return None

    def _indexed(self, node: Any, depth: int) -> Tensor | None:
        child = node.next_functions[0]
        labels = None
        if child[0] is not None and not self.is_table(child):
            labels = self.of(child, depth + 1)
        if labels is None:
            return None
        places = node._saved_indices
        covered = [1 if p is None or p.dtype != torch.bool else p.dim() for p in places]
        labels = widened(labels, shape_of(child), max(labels.dim(), sum(covered)))
        index = tuple(slice(None) if p is None else p.to(labels.device) for p in places)
        return labels[index]

    def _index_selected(self, node: Any, depth: int) -> Tensor | None:
        """Return the examples of rows that were picked by their numbers."""
        child, index = node.next_functions[0], node._saved_index
        if child[0] is None or signed(node._saved_dim) % max(1, len(shape_of(child))):
            return None
        labels = None if self.is_table(child) else self.of(child, depth + 1)
        return None if labels is None else labels[index.to(labels.device).reshape(-1)]

    def _selected(self, node: Any, depth: int) -> Tensor | None:
        """Return the examples of the elements that a mask selects."""
        child, mask = node.next_functions[0], node._saved_mask
        labels = None if child[0] is None else self.of(child, depth + 1)
        if labels is None or mask.shape != shape_of(child):
            return None
        return widened(labels, mask.shape, mask.dim())[mask.to(labels.device)]

    def _below(self, edge: Edge, shape: tuple[int, ...], depth: int) -> Tensor | None:
        node, _ = edge
        name = operation(node)
        for child in node.next_functions:
            if child[0] is None:
                continue
            if name in RESHAPES:
                found = self.of(child, depth + 1)
                return None if found is None else _reshaped(found, shape_of(child), shape)
            if name in _PERMUTES:
                found = self.of(child, depth + 1)
                return None if found is None else _permuted(node, found, shape_of(child))
            if name in KEEPS_ROWS:
                found = self.of(child, depth + 1)
                if found is not None and _fits(found, shape) and not normalises(node, found):
                    return found
        if name in _ROWS_OF_INPUT:
            child = node.next_functions[_ROWS_OF_INPUT[name]]
            found = None if child[0] is None else self.of(child, depth + 1)
            return found if found is not None and _fits(found, shape) else None
        return None

    def is_table(self, edge: Edge, depth: int = 0) -> bool:
        """Return whether the rows of a tensor are rows of a parameter, not examples."""
        if edge not in self._tables:
            self._tables[edge] = depth <= _DEPTH and self._has_rows_of_parameters(edge, depth)
        return self._tables[edge]

    def _has_rows_of_parameters(self, edge: Edge, depth: int) -> bool:
        node, _ = edge
        if node.name() == ACCUMULATE:
            return isinstance(node.variable, nn.Parameter)
        name, shape = operation(node), shape_of(edge)
        if name in KEEPS_ROWS:
            children = [child for child in node.next_functions if child[0] is not None]
            shapes = [(child, shape_of(child)) for child in children]
            there = [c for c, own in shapes if len(own) == len(shape) and own[:1] == shape[:1]]
        else:
            child = (
                node.next_functions[_ROWS_OF_INPUT[name]] if name in _ROWS_OF_INPUT else (None, 0)
            )
            there = [] if child[0] is None else [child]
        return bool(there) and all(self.is_table(each, depth + 1) for each in there)


def normalises(node: Any, labels: Tensor) -> bool:
    """Return whether a node is a softmax over several examples."""
    if operation(node) not in ("Softmax", "LogSoftmax"):
        return False
    dim = signed(node._saved_dim) % max(1, len(shape_of((node, 0))))
    return dim < labels.dim() and bool((labels.diff(dim=dim) != 0).any())


def _fits(labels: Tensor, shape: Sequence[int]) -> bool:
    return tuple(labels.shape) == tuple(shape[: labels.dim()])


def widened(labels: Tensor, shape: Sequence[int], axes: int) -> Tensor:
    """Return labels for the first ``axes`` axes of a tensor."""
    more = tuple(shape[labels.dim() : axes])
    return labels.reshape(*labels.shape, *(1,) * len(more)).expand(*labels.shape, *more)


def _reshaped(labels: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor | None:
    """Return labels after a reshape that only splits or joins the first axes."""
    for axes in range(labels.dim(), len(before) + 1):
        size = math.prod(before[:axes])
        for new in range(1, len(after) + 1):
            if math.prod(after[:new]) == size:
                return widened(labels, before, axes).reshape(after[:new])
    return None


def _permuted(node: Any, labels: Tensor, before: Sequence[int]) -> Tensor:
    """Return labels after axes changed their places, without axes at the end that do not matter."""
    size = len(before)
    order = list(range(size))
    if operation(node) == "Permute":
        order = [signed(dim) % size for dim in node._saved_dims]
    else:
        one, two = (0, size - 1) if operation(node) == "T" else (node._saved_dim0, node._saved_dim1)
        one, two = signed(one) % size, signed(two) % size
        order[one], order[two] = order[two], order[one]
    axes = 1 + max(place for place, axis in enumerate(order) if axis < labels.dim())
    found = widened(labels, before, size).permute(order)
    for _ in range(size - axes):
        found = found[..., 0]
    return found
