"""What a user declares about a loss: which tensor it is, and how many items it counts.

A training program divides the losses of tokens by the number of all tokens of a step, which may be
spread over micro-batches and processes. The graph of one batch shows a sum divided by a number; the
declaration says what the number is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog._validate import refuse
from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._graph._autograd_graph import (
    Edge,
    Node,
    call,
    operation,
    root_of,
    shape_of,
    signed,
    sum_to,
)
from sawlog.torch._loss._masks import masks_of, sum_by_example
from sawlog.torch._loss._terms import Scale, Unclear

Path = tuple[tuple[Node, int], ...]
Factors = Sequence[tuple[str, float]]

_MULTIPLES = {
    "Mul", "Div", "Neg", "Sum", "Mean", "View", "ReshapeAlias", "UnsafeView", "Squeeze",
    "Unsqueeze", "ToCopy", "Clone", "Alias", "Expand",
}  # fmt: skip


class DeclaredLosses:
    """The tensors that are the losses of a batch, before anything else is done with them."""

    def __init__(self) -> None:
        self._edges: list[Edge] = []

    def __bool__(self) -> bool:
        return bool(self._edges)

    def add(self, loss: Tensor) -> None:
        """Add a loss, a tensor with one element."""
        if loss.numel() != 1:
            raise ArgumentError(
                f"declare_loss takes a loss of one element; got the shape {tuple(loss.shape)}."
            )
        if loss.grad_fn is None:
            raise ArgumentError(
                "declare_loss got a tensor without a gradient. Hint: the loss itself, before "
                "detach() or item()."
            )
        self._edges.append(root_of(loss))

    def path_from(self, root: Edge) -> tuple[Edge, Path]:
        """Return the declared loss below a root, and how the graph leads to it.

        Raises:
            CaptureError: the root is not a multiple of a declared loss.
        """
        edge = root
        path: Path = ()
        while edge not in self._edges:
            node = edge[0]
            children = [
                (place, child)
                for place, child in enumerate(node.next_functions)
                if child[0] is not None
            ]
            if operation(node) not in _MULTIPLES or len(children) != 1:
                raise CaptureError(
                    f"Gradients were computed of {node.name()}, which is not a multiple of the "
                    "loss that was declared. Hint: declare_loss(loss) the sum of all terms."
                )
            ((place, edge),) = children
            path = (*path, (node, place))
        return edge, path

    def factor(self, starts: dict[Edge, Tensor]) -> float:
        """Return by what the declared loss is multiplied where a backward pass starts."""
        if len(starts) != 1:
            raise CaptureError(
                "Gradients of several tensors were computed at once, and one loss was declared. "
                "Hint: call backward on each."
            )
        ((root, grad),) = starts.items()
        for node, place in self.path_from(root)[1]:
            found = call(node, grad)[place]
            assert found is not None
            grad = sum_to(found, shape_of(node.next_functions[place]))
        return float(grad)


@dataclasses.dataclass(frozen=True)
class Items:
    """How many items of each example a loss counts, and by how many it divides.

    Args:
        counts: the number of items of each example, ``[batch]``.
        total: by what the loss divides.
        times: by what it is multiplied besides.
    """

    counts: Tensor
    total: float
    times: float = 1.0

    @classmethod
    def read(cls, counts: Any, total: Any, times: float, batch: int) -> Items:
        """Check what the user declared.

        Raises:
            ArgumentError: there is not one count for each example, or less than nothing to divide
                by.
        """
        own = torch.as_tensor(counts).detach().double().cpu()
        if own.shape != (batch,):
            raise ArgumentError(
                f"`counts` must have one number for each of {batch} examples; got the shape "
                f"{tuple(own.shape)}."
            )
        if not bool((own >= 0).all()):
            refuse("counts", "non-negative numbers", own.tolist())
        number = float(own.sum()) if total is None else float(total)
        if not number > 0 and bool((own > 0).any()):
            refuse("total", "a positive number", number)
        return cls(own, number, float(times))

    def divides(self, number: float) -> bool:
        """Return whether a number is the total, or a multiple of it, like that of a vocabulary."""
        if not self.total or not number > 0:
            return False
        ratio = number / self.total
        return round(ratio) >= 1 and abs(ratio - round(ratio)) <= 1e-6 * ratio

    def without_times(self, by: Factors) -> Factors:
        """Leave out the product with ``times``.

        Raises:
            Unclear: the loss is not multiplied by it.
        """
        if self.times == 1.0:
            return by
        for place, (kind, number) in enumerate(by):
            if kind == "mul" and abs(number - self.times) <= 1e-6 * self.times:
                return (*by[:place], *by[place + 1 :])
        raise Unclear(f"it is not multiplied by {self.times:g}, as was declared")

    def scale(
        self, node: Node, edge: Edge, labels: Tensor, by: Factors, batch: int
    ) -> Scale | None:
        """Return the scale of a sum that is divided by the total; None if it is not."""
        if not any(kind == "div" and self.divides(number) for kind, number in by):
            return None
        own = self._own(node, edge, labels, batch)
        if bool((own == own[0]).all()) and bool(own[0] > 0):
            return self.total / float(own[0])
        return torch.where(own > 0, self.total / own, torch.zeros_like(own))

    def _own(self, node: Node, edge: Edge, labels: Tensor, batch: int) -> Tensor:
        """Return how many items of each example a sum has, from its targets if it shows them."""
        if operation(node) == "NllLoss" and node._saved_target.numel() == labels.numel():
            counted = (node._saved_target != signed(node._saved_ignore_index)).double()
            return sum_by_example(counted, labels.to(counted.device), batch).cpu()
        masks = [each.cpu() for each in masks_of(edge, labels, batch)]
        whole = [each for each in masks if bool((each == each.round()).all()) and each.sum() > 0]
        if whole and not any(torch.equal(each, self.counts) for each in whole):
            raise Unclear("its mask counts other items of the examples than were declared")
        return self.counts
