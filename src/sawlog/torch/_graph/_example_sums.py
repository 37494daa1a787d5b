"""Per-example gradients of parameters, summed over all operations that use them.

A weight that an operation uses is a parameter, a view of one, or computed from several. The
gradients of a parameter are one tensor for all examples. Those of a view are added to the same view
of that tensor. Weights that are computed are differentiated for all examples at once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    Edge,
    Node,
    call,
    gradients,
    operation,
    shape_of,
    sum_to,
)
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations._dispatch import all_at_once
from sawlog.torch._graph._operations._example_labels import Where
from sawlog.torch._graph._operations._weight_use import Factors, WeightUse
from sawlog.torch._graph._parameter_views import SAME_VALUES, is_view, view_of


class ExampleSums:
    """Gradients of parameters, ``[batch, *shape]`` for each.

    Args:
        parameters: the parameters to differentiate, by name.
        batch: the number of examples.
    """

    def __init__(self, parameters: Mapping[str, Tensor], batch: int) -> None:
        self._parameters, self._batch = parameters, batch
        self._sums: dict[str, Tensor] = {}
        self._own: set[str] = set()
        self._factors: dict[str, list[Factors]] = {}
        self._shared: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def add(
        self,
        use: WeightUse,
        grads: Sequence[Tensor | None],
        where: Sequence[Where | None],
        names: Sequence[str],
    ) -> None:
        """Add the gradients of one use.

        Args:
            use: the operation.
            grads: the gradients of its outputs.
            where: where the examples are in each of them.
            names: the parameters that the weight is computed from.
        """
        found = all_at_once(use, grads, where, self._batch, self._shared)
        if found is None:
            found = _one_by_one(use, grads, where, self._batch)
        with self._lock:
            self._add(use.weight, found, names)

    @torch.no_grad()
    def rows(self, name: str) -> Tensor | None:
        """Return the gradients of a parameter; None if no use was added."""
        several = self._factors.pop(name, [])
        if several:
            left = torch.cat([each.left for each in several], 1)
            right = torch.cat([each.right for each in several], 1)
            self.add_rows(name, left.mT @ right)
        return self._sums.get(name)

    def add_rows(self, name: str, rows: Tensor) -> None:
        """Add gradients ``[batch, *shape]`` of a parameter."""
        there = self._sums.get(name)
        if there is None:
            self._sums[name] = rows
        elif name in self._own:
            there += rows
        else:
            self._sums[name] = there + rows
            self._own.add(name)

    def _add(self, edge: Edge, found: Factors | Tensor, names: Sequence[str]) -> None:
        """Follow a weight to its parameter, through operations that reshape or transpose it."""
        while True:
            node = edge[0]
            name = operation(node)
            if name == "T" and isinstance(found, Factors):
                found = found.transposed
            elif name == "Expand":
                found = sum_to(_multiplied(found), shape_of(node.next_functions[0]), first=1)
            elif name not in SAME_VALUES:
                break
            edge = node.next_functions[0]
        if node.name() == ACCUMULATE:
            name = next(each for each in names if self._parameters[each] is node.variable)
            if isinstance(found, Factors):
                self._factors.setdefault(name, []).append(found)
            else:
                self.add_rows(name, found)
            return
        rows = _multiplied(found)
        if not self._add_to_view(edge, rows, names):
            self._through(edge, rows, names)

    def _add_to_view(self, edge: Edge, rows: Tensor, names: Sequence[str]) -> bool:
        """Add to a view of the gradients of a parameter; return False if it is not a view."""
        views: list[tuple[Node, int]] = []
        while is_view(edge[0]):
            views.append(edge)
            edge = edge[0].next_functions[0]
        if edge[0].name() != ACCUMULATE:
            return False
        variable = edge[0].variable
        name = next(each for each in names if self._parameters[each] is variable)
        sums = self._owned(name, rows.dtype)
        try:
            there = view_of(views, sums)
        except RuntimeError:  # a copy, not a view
            return False
        there += rows.reshape(there.shape)
        return True

    def _owned(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the gradients of a parameter so far, as a tensor that may be written to."""
        if name not in self._own:
            there, like = self._sums.get(name), self._parameters[name]
            if there is None:
                shape = (self._batch, *like.shape)
                self._sums[name] = torch.zeros(shape, dtype=dtype, device=like.device)
            else:
                self._sums[name] = there.clone(memory_format=torch.contiguous_format)
            self._own.add(name)
        return self._sums[name]

    def _through(self, edge: Edge, rows: Tensor, names: Sequence[str]) -> None:
        """Differentiate a computed weight with respect to its parameters."""
        parameters = [self._parameters[name] for name in names]
        rows = rows.to(edge[0]._input_metadata[edge[1]].dtype)
        for name, found in zip(names, _batched(GradientEdge(*edge), rows, parameters), strict=True):
            if found is not None:
                self.add_rows(name, found)


def _multiplied(found: Factors | Tensor) -> Tensor:
    return found.left.mT @ found.right if isinstance(found, Factors) else found


def _one_by_one(
    use: WeightUse, grads: Sequence[Tensor | None], where: Sequence[Where | None], batch: int
) -> Tensor:
    """Differentiate an operation separately for each example."""
    shape, rows = shape_of(use.weight), []
    numbers = torch.arange(batch)
    for b in range(batch):
        parts = [
            None if grad is None or place is None else _only(grad, place, numbers == b)
            for grad, place in zip(grads, where, strict=True)
        ]
        found = call(use.node, *parts)[use.place]
        if found is None:
            like = next(each for each in grads if each is not None)
            found = like.new_zeros(shape)
        found = found.to_dense() if found.is_sparse else found
        rows.append(sum_to(found, shape).reshape(shape))
    return torch.stack(rows)


def _only(grad: Tensor, where: Where, chosen: Tensor) -> Tensor:
    """Return a gradient with the elements of all other examples set to zero."""
    if isinstance(where, ExampleLayout):
        keep = where.spread(chosen.to(grad.device), grad.shape)
    else:
        keep = where == chosen.nonzero()[0, 0].to(grad.device)
    return torch.where(keep, grad, torch.zeros((), dtype=grad.dtype, device=grad.device))


def _batched(edge: Any, rows: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of parameters for each row of gradients of a computed weight."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return gradients([edge], parameters, [rows], batched=True)
    except RuntimeError:
        each = [gradients([edge], parameters, [row]) for row in rows]
        return [
            None if column[0] is None else torch.stack([row for row in column if row is not None])
            for column in zip(*each, strict=True)
        ]
