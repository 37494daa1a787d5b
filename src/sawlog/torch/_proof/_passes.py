"""Backward passes from the terms of a loss, with a weight for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph._autograd_graph import Edge, gradients
from sawlog.torch._loss._terms import Scale, Term, agreed

Weights = Callable[[Term], Scale]


class Passes:
    """Runs backward passes from a loss, and keeps the graph.

    Args:
        terms: the terms of the loss.
        starts: the gradient of each root of the loss, by its edge.
    """

    def __init__(self, terms: Sequence[Term], starts: dict[Edge, Tensor]) -> None:
        self._starts = starts
        self._grads = [(term, term.gradient(starts[term.root])) for term in terms]
        self.scale = agreed(terms)

    @property
    def edges(self) -> list[Edge]:
        """The edges of the terms."""
        return [term.edge for term, _ in self._grads]

    @property
    def rest(self) -> Scale:
        """The scale that the gradients of :meth:`plain` still need."""
        return 1.0 if self.scale is None else self.scale

    def plain(self, inputs: Sequence[Any]) -> list[Tensor | None]:
        """Return the gradients of ``inputs``, scaled only if terms have different scales."""
        if self.scale is None:
            return self._run(inputs, lambda term: term.scale)
        outputs = [GradientEdge(*edge) for edge in self._starts]
        return gradients(outputs, inputs, list(self._starts.values()))

    def weighted(self, inputs: Sequence[Any], factors: Tensor) -> list[Tensor | None]:
        """Return the same with a factor for each example."""

        def weights(term: Term) -> Scale:
            if self.scale is not None:
                return factors
            scale = term.scale
            return factors * (scale if isinstance(scale, float) else scale.to(factors.device))

        return self._run(inputs, weights)

    def _run(self, inputs: Sequence[Any], weights: Weights) -> list[Tensor | None]:
        """Return the gradients of ``inputs``, with each term weighted by ``weights(term)``."""
        sums: dict[Edge, Tensor] = {}
        for term, grad in self._grads:
            weighted = term.weighted(grad, weights(term))
            there = sums.get(term.edge)
            sums[term.edge] = weighted if there is None else there + weighted
        outputs = [GradientEdge(*edge) for edge in sums]
        return gradients(outputs, inputs, list(sums.values()))
