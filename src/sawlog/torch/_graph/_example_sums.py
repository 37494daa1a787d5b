"""The gradients of parameters for each example, added up over all operations that use them.

A weight that an operation uses is a parameter, a view of one, or computed of several. The gradients
of a parameter are one tensor for all examples, and those of a view are added to the same view of
it; what was computed is differentiated for all examples at once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    Edge,
    Node,
    call,
    operation,
    shape_of,
    sum_to,
)
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations import Factors, WeightUse, Where, all_at_once
from sawlog.torch._proof._passes import gradients


class ExampleSums:
    """Gradients of parameters, ``[batch, *shape]`` for each.

    Args:
        parameters: the parameters to differentiate, by name.
        batch: how many examples there are.
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
        """Add what comes through one use.

        Args:
            use: the operation.
            grads: the gradients of its outputs.
            where: how the examples lie in each of them.
            names: of the parameters that the weight is computed of.
        """
        found = all_at_once(use, grads, where, self._batch, self._shared)
        if found is None:
            found = _one_by_one(use, grads, where, self._batch)
        with self._lock:
            self._add(use.weight, found, names)

    @torch.no_grad()
    def rows(self, name: str) -> Tensor | None:
        """The gradients of a parameter; None where no use was added."""
        several = self._factors.pop(name, [])
        if several:
            left = torch.cat([each.left for each in several], 1)
            right = torch.cat([each.right for each in several], 1)
            self.give(name, left.mT @ right)
        return self._sums.get(name)

    def give(self, name: str, rows: Tensor) -> None:
        """Add gradients that are known."""
        there = self._sums.get(name)
        if there is None:
            self._sums[name] = rows
        elif name in self._own:
            there += rows
        else:
            self._sums[name] = there + rows
            self._own.add(name)

    def _add(self, edge: Edge, found: Factors | Tensor, names: Sequence[str]) -> None:
        """Walk from a weight to its parameter, over operations that reshape or transpose it."""
        while True:
            node = edge[0]
            name = operation(node)
            if name == "T" and isinstance(found, Factors):
                found = found.turned
            elif name == "Expand":
                found = sum_to(_multiplied(found), shape_of(node.next_functions[0]), first=1)
            elif name not in _SAME:
                break
            edge = node.next_functions[0]
        if node.name() == ACCUMULATE:
            name = next(each for each in names if self._parameters[each] is node.variable)
            if isinstance(found, Factors):
                self._factors.setdefault(name, []).append(found)
            else:
                self.give(name, found)
            return
        rows = _multiplied(found)
        if not self._add_to_view(edge, rows, names):
            self._through(edge, rows, names)

    def _add_to_view(self, edge: Edge, rows: Tensor, names: Sequence[str]) -> bool:
        """Add to a view of the gradients of a parameter; whether the weight is such a view."""
        views: list[tuple[Node, int]] = []
        while operation(edge[0]) in _VIEWS or operation(edge[0]) in _SAME:
            views.append(edge)
            edge = edge[0].next_functions[0]
        if edge[0].name() != ACCUMULATE:
            return False
        variable = edge[0].variable
        name = next(each for each in names if self._parameters[each] is variable)
        sums = self._owned(name, rows.dtype)
        try:
            there = _seen(views, sums)
        except RuntimeError:  # a copy, and no view
            return False
        there += rows.reshape(there.shape)
        return True

    def _owned(self, name: str, dtype: torch.dtype) -> Tensor:
        """The gradients of a parameter so far, which may be added to."""
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
        """From the gradients of a weight to those of the parameters it was computed of."""
        parameters = [self._parameters[name] for name in names]
        rows = rows.to(edge[0]._input_metadata[edge[1]].dtype)
        for name, found in zip(names, _batched(GradientEdge(*edge), rows, parameters), strict=True):
            if found is not None:
                self.give(name, found)


def _multiplied(found: Factors | Tensor) -> Tensor:
    return found.left.mT @ found.right if isinstance(found, Factors) else found


# -- views of parameters --------------------------------------------------------------------------

_SAME = {"Alias", "Clone", "ToCopy", "Contiguous"}


def _seen(views: Sequence[tuple[Node, int]], sums: Tensor) -> Tensor:
    """The views of a weight, of its gradients with the examples in front."""
    for node, output in reversed(views):
        if operation(node) in _VIEWS:
            sums = _VIEWS[operation(node)](sums, node, output)
    return sums


def _axis(number: Any, tensor: Tensor) -> int:
    """An axis of what one example has, as one of the gradients of all."""
    signed = int(number) - 2**64 if int(number) >= 2**63 else int(number)
    return signed % (tensor.dim() - 1) + 1


def _viewed(sums: Tensor, node: Node, output: int) -> Tensor:
    return sums.view(len(sums), *shape_of((node, output)))


def _transposed(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    return sums.transpose(_axis(node._saved_dim0, sums), _axis(node._saved_dim1, sums))


def _turned(sums: Tensor, node: Node, output: int) -> Tensor:
    del node, output
    return sums.transpose(1, 2) if sums.dim() == 3 else sums


def _permuted(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    return sums.permute(0, *(_axis(each, sums) for each in node._saved_dims))


def _selected(sums: Tensor, node: Node, output: int) -> Tensor:
    del output
    axis = _axis(node._saved_dim, sums)
    index = int(node._saved_index)
    index = index - 2**64 if index >= 2**63 else index
    return sums.select(axis, index)


def _sliced(sums: Tensor, node: Node, output: int) -> Tensor:
    size = shape_of((node, output))
    axis = _axis(node._saved_dim, sums)
    start = int(node._saved_start)
    start = start - 2**64 if start >= 2**63 else start
    length = sums.shape[axis]
    start = max(0, start + length) if start < 0 else min(start, length)
    step = int(node._saved_step)
    stop = start + max(0, size[axis - 1] - 1) * step + (1 if size[axis - 1] else 0)
    place = [slice(None)] * sums.dim()
    place[axis] = slice(start, stop, step)
    return sums[tuple(place)]


def _unbound(sums: Tensor, node: Node, output: int) -> Tensor:
    return sums.select(_axis(node._saved_dim, sums), output)


def _split(sums: Tensor, node: Node, output: int) -> Tensor:
    axis, size = _axis(node._saved_dim, sums), int(node._saved_split_size)
    return sums.narrow(axis, output * size, shape_of((node, output))[axis - 1])


_VIEWS: dict[str, Callable[[Tensor, Node, int], Tensor]] = {
    "T": _turned,
    "Transpose": _transposed,
    "Permute": _permuted,
    "View": _viewed,
    "ReshapeAlias": _viewed,
    "UnsafeView": _viewed,
    "Unsqueeze": _viewed,
    "Squeeze": _viewed,
    "Select": _selected,
    "Slice": _sliced,
    "Unbind": _unbound,
    "Split": _split,
    "UnsafeSplit": _split,
}


# -- one by one -----------------------------------------------------------------------------------


def _one_by_one(
    use: WeightUse, grads: Sequence[Tensor | None], where: Sequence[Where | None], batch: int
) -> Tensor:
    """Differentiate an operation once for each example."""
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
    """A gradient with zeros at all elements of other examples."""
    if isinstance(where, ExampleLayout):
        keep = where.spread(chosen.to(grad.device), grad.shape)
    else:
        keep = where == chosen.nonzero()[0, 0].to(grad.device)
    return torch.where(keep, grad, torch.zeros((), dtype=grad.dtype, device=grad.device))


def _batched(edge: Any, rows: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of parameters for each row of gradients of what is computed of them."""
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
