"""Refuse weights in a loss that were normalised over the examples of the batch.

Such weights are constants in the graph, but depend on all examples: a batch of one would have other
weights. They are recognised by their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import Node, operation
from sawlog.torch._loss._examples import KEEPS_ROWS, RESHAPES
from sawlog.torch._loss._masks import by_example, factors_of
from sawlog.torch._loss._terms import Term

_MORE = {"Minimum", "Maximum", "Expand", "Where"}
_STEPS = 64


def check_weights(terms: Sequence[Term], batch: int) -> None:
    """Raise a CaptureError if weights of examples appear to be normalised over the batch."""
    for term in terms:
        for weights in _weights_of(term):
            own = by_example(weights, term.labels, batch)
            how = None if own is None else _normalised(weights, own)
            if how:
                raise CaptureError(
                    f"The loss is multiplied by weights that {how} over the batch, so they were "
                    "probably normalised over its examples, and a batch of one would have other "
                    "weights. Hint: (losses * w).sum() / w.sum() is read from the graph; or "
                    "normalise them over the whole data set; or declare them constant by "
                    'run.setup(reduction="sum"), or "mean".'
                )


def _weights_of(term: Term) -> Iterator[Tensor]:
    """Yield the tensors that a term was multiplied by, through operations that keep rows."""
    stack: list[Node] = [term.path[-1][0]] if term.path else []
    stack = [node for node in stack if operation(node) == "Dot"] + [term.edge[0]]
    seen = set(stack)
    while stack and len(seen) < _STEPS:
        node = stack.pop()
        name = operation(node)
        if name in ("Mul", "Dot"):
            yield from factors_of(node)
        if name not in KEEPS_ROWS and name not in RESHAPES and name not in _MORE:
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def _normalised(weights: Tensor, own: Tensor) -> str:
    """Describe how weights were normalised, or return ""; ``own`` are sums over each example."""
    values = weights.detach().double()
    if bool(((values == 0) | (values == 1)).all()):  # a mask
        return ""
    whole = values[values != 0].flatten()
    counts = (whole > 0) & (whole == whole.round())
    if bool(counts.all()) and bool((whole != whole[0]).any()):  # such as the targets of a Poisson
        return ""
    coarse = weights.dtype in (torch.bfloat16, torch.float16)
    tolerance = 1e-2 if coarse else 1e-5
    total, size = float(own.sum()), float(values.abs().sum())
    if abs(total - 1) <= tolerance:
        return "sum up to 1"
    if bool(((own - own[0]).abs() <= tolerance * own.abs().max()).all()):  # within each example
        return ""
    if min(abs(total - len(own)), abs(total - values.numel())) <= tolerance * abs(total):
        return "have the mean 1"
    signs = values.abs()
    if abs(total) <= tolerance * size and not bool(torch.isclose(signs, signs.max()).all()):
        return "have the mean 0"
    return ""
