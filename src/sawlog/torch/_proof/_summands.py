"""Whether a proof saw every path along which examples could be mixed.

Where several operations use a tensor, their gradients are added. One of them may mix examples, and
be zero or tiny in the batch that is proven: a term whose weight is still 0, or a gate that is still
closed. The sum does not show that, so each summand is tested by itself. Unless every one of them
has its examples apart, the proof holds for its own batch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import ACCUMULATE, Graph, Node
from sawlog.torch._graph._example_layout import Codes, ExampleLayout, candidates, labels_of

_ROUNDING = 1e-3  # relative, by the norm; where examples are mixed, it is some 0.1


class Summands:
    """Records the gradients that are added where several operations use a tensor.

    Args:
        graph: the graph of the loss.
        is_weight: whether a node depends on parameters alone: their gradients join all examples.
    """

    def __init__(self, graph: Graph, is_weight: Callable[[Node], bool]) -> None:
        self._places: dict[Node, list[int]] = {}
        for child, users in graph.users().items():
            if len(users) > 1 and child.name() != ACCUMULATE and not is_weight(child):
                for user, place in users:
                    self._places.setdefault(user, []).append(place)
        self._passes: list[dict[tuple[Node, int], Tensor | None]] = []

    def hooks(self) -> list[Any]:
        """Start to record; return handles to remove."""
        return [node.register_hook(self._recorder(node)) for node in self._places]

    def next_pass(self) -> None:
        """Record a further backward pass: first the plain one, then that of each code."""
        self._passes.append({})

    def _recorder(self, node: Node) -> Any:
        def record(grads: Sequence[Tensor | None], above: Sequence[Tensor | None]) -> None:
            if is_zero(above):  # a plan remembers these nodes
                return
            for place in self._places[node]:
                self._passes[-1][node, place] = grads[place]

        return record

    def are_apart(self, codes: Codes, axis: int) -> bool:
        """Return whether every summand was seen, and has its examples apart.

        Args:
            codes: the factors of the examples in each further pass.
            axis: where the examples are likely to be.
        """
        plain, *coded = self._passes
        return all(
            _is_apart(grad, [each[key] for each in coded], codes, axis)
            for key, grad in plain.items()
            if all(key in each for each in coded)  # others are above the terms of the loss
        )


def is_zero(grads: Sequence[Tensor | None]) -> bool:
    """Return whether all elements of gradients are zero."""
    return not any(each is not None and _is_there(each) for each in grads)


def _is_there(grad: Tensor) -> bool:
    """Return whether some element is not zero; most often, that is seen in a few of them."""
    first = grad[(0,) * (grad.dim() - 1)] if grad.numel() else grad
    return bool(first.any()) or bool(grad.any())


def has_every_example(grad: Tensor, layout: ExampleLayout, batch: int) -> bool:
    """Return whether the gradient of every example has an element that is not zero."""
    rows = layout.split(grad, batch)
    first = rows
    while first.dim() > 2 and first.numel():
        first = first[:, 0]
    every = (each.reshape(batch, -1).any(1).all() for each in (first, rows))
    return any(map(bool, every))


def _is_apart(
    plain: Tensor | None, coded: Sequence[Tensor | None], codes: Codes, axis: int
) -> bool:
    if plain is None or not plain.numel():
        return True
    others = [each for each in coded if each is not None]
    if len(others) < len(coded) or not bool(plain.any()):
        return False
    for layout in candidates(plain.shape, axis, len(codes.factors[0])):
        if all(
            _is_scaled(plain, each, layout.spread(factors, plain.shape), codes)
            for each, factors in zip(others, codes.factors, strict=True)
        ):
            return True
    return labels_of(plain, others, codes) is not None


def _is_scaled(plain: Tensor, coded: Tensor, factors: Tensor, codes: Codes) -> bool:
    """Return whether a gradient changed by these factors, except for rounding."""
    dtype = plain.dtype if plain.dtype == torch.float32 else _wide(plain)
    apart = (coded.to(dtype) / factors.to(plain.device, dtype)).sub_(plain)
    return _norm(apart) <= max(_ROUNDING, codes.tolerance) * _norm(plain)


def _norm(tensor: Tensor) -> float:
    """Return the norm, in float64: squares of small numbers are zero in float32."""
    return float(torch.linalg.vector_norm(tensor, dtype=_wide(tensor)))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
