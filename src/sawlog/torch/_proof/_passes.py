"""Backward passes from the terms of a loss, with a weight for each example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
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
    def terms(self) -> Sequence[tuple[Term, Tensor]]:
        """The terms with their gradients."""
        return self._grads

    @property
    def rest(self) -> Scale:
        """The scale that the gradients of :meth:`plain` still need."""
        return 1.0 if self.scale is None else self.scale

    @property
    def size(self) -> float:
        """By how much gradients of a batch of one are greater than those of :meth:`plain`."""
        greatest = float(torch.as_tensor(self.rest).max())
        return greatest if 1 < greatest < math.inf else 1.0

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

    def accumulate(self, factors: Tensor) -> None:
        """Run a backward pass into ``.grad``, with a factor for each example."""
        outputs, grads = self._weighted_terms(lambda term: factors)
        torch.autograd.backward(outputs, grads, retain_graph=True)

    def _run(self, inputs: Sequence[Any], weights: Weights) -> list[Tensor | None]:
        """Return the gradients of ``inputs``, with each term weighted by ``weights(term)``."""
        outputs, grads = self._weighted_terms(weights)
        return gradients(outputs, inputs, grads)

    def _weighted_terms(self, weights: Weights) -> tuple[list[GradientEdge], list[Tensor]]:
        sums: dict[Edge, Tensor] = {}
        for term, grad in self._grads:
            weighted = term.weighted(grad, weights(term))
            there = sums.get(term.edge)
            sums[term.edge] = weighted if there is None else there + weighted
        return [GradientEdge(*edge) for edge in sums], list(sums.values())
