"""Terms of a loss.

A loss is a sum of terms. Each is a tensor in which the examples are still separate and an operation
that joins them, with a scale for every example.

The gradient of an example is that of the same program on a batch of that example alone. If the loss
is a mean over the examples, the gradient that arrives is that gradient divided by their number. If
it is a mean over positions that count, as in language models with padding, it is divided by the
number of all of these, and multiplied by the number of those of the example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, call, shape_of, sum_to

Scale = float | Tensor


@dataclasses.dataclass(frozen=True)
class Term:
    """A tensor of the loss in which the examples are still separate.

    Args:
        root: the loss that it is a term of.
        edge: its edge in the graph.
        path: the nodes from the loss to it, each with the index of the input that leads to it.
        labels: the example of each of its rows, in the shape of its first axes.
        scale: the factor that makes the gradient of each example that of a batch of one.
    """

    root: Edge
    edge: Edge
    path: tuple[tuple[Node, int], ...]
    labels: Tensor
    scale: Scale

    def gradient(self, start: Tensor) -> Tensor:
        """Return the gradient of the term, given that of the loss."""
        grad = start
        for node, place in self.path:
            grads = [None] * len(node._input_metadata)
            found = call(node, *([grad, *grads[1:]] if len(grads) > 1 else [grad]))[place]
            assert found is not None
            grad = sum_to(found, shape_of(node.next_functions[place]))
        return grad

    def weighted(self, grad: Tensor, weights: Scale) -> Tensor:
        """Return a gradient multiplied by a number, or by one for each example."""
        if isinstance(weights, float):
            return grad if weights == 1.0 else grad * weights
        by = weights.to(grad.device)[self.labels.to(grad.device)].to(grad.dtype)
        return grad * by.reshape((*by.shape, *(1,) * (grad.dim() - by.dim())))


class Unclear(Exception):
    """The graph does not determine how the loss joins the examples."""


def agreed(terms: Sequence[Term]) -> Scale | None:
    """Return the scale that all terms have; None if they differ."""
    first = terms[0].scale
    for term in terms[1:]:
        if not torch.equal(torch.as_tensor(first), torch.as_tensor(term.scale)):
            return None
    return first
