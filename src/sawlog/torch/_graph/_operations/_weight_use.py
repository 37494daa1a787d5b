"""Uses of weights by operations, the gradients that arrive there, and the results."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, operation, shape_of
from sawlog.torch._graph._operations._example_labels import Where, labels_along


@dataclasses.dataclass(frozen=True)
class WeightUse:
    """An operation that joins a weight with data of the examples.

    Args:
        node: the operation.
        place: the index of the weight among its inputs.
        number: the number of the node in the graph.
    """

    node: Node
    place: int
    number: int

    @property
    def weight(self) -> Edge:
        """The edge of the weight."""
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
        grad: the gradient of the only output that has one.
        where: where the examples are in it.
        batch: the number of examples.
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
        """Return the example of each index of an axis; None if it depends on other axes too."""
        return labels_along(self.where, self.grad, (axis,), self.batch)


@dataclasses.dataclass(frozen=True)
class Factors:
    """Gradients ``left.mT @ right`` as two factors.

    Args:
        left, right: ``[batch, positions, rows]`` and ``[batch, positions, cols]``.
    """

    left: Tensor
    right: Tensor

    @property
    def transposed(self) -> Factors:
        """The factors of the gradients of the transposed weight."""
        return Factors(self.right, self.left)


Found = Factors | Tensor | None
"""Gradients ``[batch, *shape of the weight]``, or factors of them."""


def wide(tensor: Tensor) -> Tensor:
    """Return a detached tensor in float32 or a wider dtype."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
