"""Uses of weights by operations, the gradients that arrive there, and the results."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, operation, shape_of
from sawlog.torch._graph._operations._example_labels import Where, labels_along


@dataclasses.dataclass(frozen=True)
class WeightUse:
    """An operation that joins a weight with something of the examples.

    Args:
        node: the operation.
        place: which of its inputs the weight is.
        number: of the node, in the order of the graph.
    """

    node: Node
    place: int
    number: int

    @property
    def weight(self) -> Edge:
        """The weight."""
        edge: Edge = self.node.next_functions[self.place]
        return edge

    @property
    def name(self) -> str:
        """The name of the operation."""
        return operation(self.node)


@dataclasses.dataclass(frozen=True)
class ArrivedGradient:
    """The gradient that arrived at an operation.

    Args:
        use: the operation, and the weight.
        grad: the gradient of its only output that has one.
        where: how the examples lie in it.
        batch: how many examples there are.
    """

    use: WeightUse
    grad: Tensor
    where: Where
    batch: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return shape_of(self.use.weight)

    def labels(self, axis: int) -> Tensor | None:
        """The example of each place of an axis of the gradient; None where others matter too."""
        return labels_along(self.where, self.grad, (axis,), self.batch)


@dataclasses.dataclass(frozen=True)
class Factors:
    """Gradients that are products ``left.mT @ right``, not multiplied yet.

    Args:
        left, right: ``[batch, positions, rows]`` and ``[batch, positions, cols]``.
    """

    left: Tensor
    right: Tensor

    @property
    def turned(self) -> Factors:
        """Those of the transposed weight."""
        return Factors(self.right, self.left)


Found = Factors | Tensor | None
"""Gradients ``[batch, *shape of the weight]``, or factors of them."""


def wide(tensor: Tensor) -> Tensor:
    """In float32, at least."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
