"""The losses that one backward pass starts from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph._autograd_graph import Edge, reaching, root_of


class Roots:
    """Losses with the gradients that their backward pass starts with.

    Args:
        losses: the tensors that ``backward`` was called on.
        grads: the gradient of each; None is one.
    """

    def __init__(self, losses: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        both = [(loss, grad) for loss, grad in zip(losses, grads, strict=True)]
        self._both = [(loss, grad) for loss, grad in both if loss.grad_fn is not None]
        self.edges: list[Edge] = list(dict.fromkeys(root_of(loss) for loss, _ in self._both))
        self.nodes = [node for node, _ in self.edges]

    @property
    def losses(self) -> list[tuple[Tensor, Tensor]]:
        """Each loss with its gradient."""
        return [
            (loss, torch.ones_like(loss) if grad is None else grad.detach())
            for loss, grad in self._both
        ]

    def starts(self) -> dict[Edge, Tensor]:
        """Return the gradient of each loss."""
        found: dict[Edge, Tensor] = {}
        for loss, own in self.losses:
            edge = root_of(loss)
            found[edge] = found[edge] + own if edge in found else own
        return found

    def backward_to(self, edges: Sequence[GradientEdge]) -> None:
        """Run the backward pass only as far as some edges; this frees the graph."""
        losses = [loss for loss, _ in self._both]
        grads = [grad for _, grad in self._both]
        with reaching(edges):
            torch.autograd.grad(losses, list(edges), grads, allow_unused=True)
