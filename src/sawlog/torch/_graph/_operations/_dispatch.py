"""The gradients of a weight for each example through one operation, for all examples at once.

Each kind of operation has a function. It receives the gradient of the output of the operation, with
the layout of the examples in it, and reads the other inputs from the graph. It returns None where
it does not apply; the operation is then differentiated once for each example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._operations._convolution import convolved
from sawlog.torch._graph._operations._elementwise import concatenated, elementwise, normalised
from sawlog.torch._graph._operations._example_labels import Where
from sawlog.torch._graph._operations._lookups import looked_up
from sawlog.torch._graph._operations._products import grouped, other_factor, product, times_vector
from sawlog.torch._graph._operations._recurrent import recurrent
from sawlog.torch._graph._operations._weight_use import ArrivedGradient, Found, WeightUse


def all_at_once(
    use: WeightUse,
    grads: Sequence[Tensor | None],
    where: Sequence[Where | None],
    batch: int,
    shared: dict[Any, Any],
) -> Found:
    """Return the gradients of a weight for each example; None if no function applies.

    Args:
        use: the operation, and the weight.
        grads: the gradients of its outputs.
        where: where the examples are in each of them.
        batch: the number of examples.
        shared: intermediate results that the weights of one operation share.
    """
    if use.name == "MkldnnRnnLayer":
        return recurrent(use, grads, where, batch, shared)
    function = _FUNCTIONS.get(use.name)
    grad, *more = grads
    lies = where[0]
    if function is None or grad is None or lies is None or any(g is not None for g in more):
        return None
    if grad.is_complex() or grad.layout != torch.strided:
        return None
    return function(ArrivedGradient(use, grad, lies, batch))


def is_of_inputs(use: WeightUse) -> bool:
    """Return whether a weight is joined with a tensor without a gradient: inputs of the model."""
    if use.name in ("Mm", "Addmm"):
        is_first = use.place == int(use.name == "Addmm")
        other = other_factor(use.node, is_first)
        edge = use.node.next_functions[use.place + (1 if is_first else -1)]
        return edge[0] is None and other is not None and bool(other.any())
    if use.name == "Convolution":
        return use.node.next_functions[0][0] is None
    return use.name == "Embedding"


_FUNCTIONS: dict[str, Callable[[ArrivedGradient], Found]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Where", "MaskedFill"), elementwise),
    **dict.fromkeys(("Cat", "Stack"), concatenated),
    **dict.fromkeys(("Mm", "Addmm", "Bmm", "Baddbmm"), product),
    "GroupedMm": grouped,
    "Mv": times_vector,
    **dict.fromkeys(("Embedding", "Index", "IndexSelect"), looked_up),
    "Convolution": convolved,
    "NativeLayerNorm": normalised,
}
