"""Backward passes from the terms of a loss, with a weight for each example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph import Edge
from sawlog.torch._loss import Scale, Term

Weights = Callable[[Term], Scale]


class Passes:
    """Walks back from the terms of a loss, as often as asked; the graph stays as it is.

    Args:
        terms: the terms.
        starts: the gradient of each root of the loss, by its edge.
    """

    def __init__(self, terms: Sequence[Term], starts: dict[Edge, Tensor]) -> None:
        self._grads = [(term, term.gradient(starts[term.root])) for term in terms]

    def run(self, inputs: Sequence[Tensor | GradientEdge], weights: Weights) -> list[Tensor | None]:
        """The gradients of ``inputs``, where each term is weighted by ``weights(term)``."""
        sums: dict[Edge, Tensor] = {}
        for term, grad in self._grads:
            weighted = term.weighted(grad, weights(term))
            there = sums.get(term.edge)
            sums[term.edge] = weighted if there is None else there + weighted
        outputs = [GradientEdge(*edge) for edge in sums]
        return gradients(outputs, inputs, list(sums.values()))


def gradients(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    grads: Sequence[Tensor | None],
    *,
    batched: bool = False,
) -> list[Tensor | None]:
    """``torch.autograd.grad``, which keeps the graph; None where an input has no gradient."""
    found = torch.autograd.grad(
        list(outputs),
        list(inputs),
        grad_outputs=list(grads),
        retain_graph=True,
        allow_unused=True,
        is_grads_batched=batched,
    )
    return [each.to_dense() if each is not None and each.is_sparse else each for each in found]


def each_scale(term: Term) -> Scale:
    """The weights that make the gradients those of each example alone."""
    return term.scale


def times(factors: Tensor) -> Weights:
    """The same, times a factor for each example."""

    def weights(term: Term) -> Scale:
        scale = term.scale
        return factors * (scale if isinstance(scale, float) else scale.to(factors.device))

    return weights
