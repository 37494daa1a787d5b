"""Gradients of the weights of an LSTM that runs as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Node
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._operations._example_labels import Where
from sawlog.torch._graph._operations._weight_use import Factors, Found, WeightUse

_LSTM = 2
"""The mode of an LSTM in ``mkldnn_rnn_layer``."""


def recurrent(
    use: WeightUse,
    grads: Sequence[Tensor | None],
    where: Sequence[Where | None],
    batch: int,
    shared: dict[Any, Any],
) -> Found:
    """Differentiate an LSTM that is one operation: recompute its steps and their gates."""
    node = use.node
    if node._saved_mode != _LSTM or node._saved_batch_sizes or use.place not in (1, 2, 3, 4):
        return None
    inputs = node._saved_input.detach()
    known = zip(grads, where, (ExampleLayout(1), ExampleLayout(0), ExampleLayout(0)), strict=False)
    if any(grad is not None and lies != own for grad, lies, own in known):
        return None
    if inputs.shape[1] != batch:
        return None
    if use.number not in shared:
        shared[use.number] = _gates_of(node, inputs, grads)
    gates, before = shared[use.number]
    if use.place > 2:
        return gates.sum(0)
    other = inputs if use.place == 1 else before
    return Factors(gates.movedim(1, 0), other.movedim(1, 0))


def _gates_of(node: Node, inputs: Tensor, grads: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates before activation, and the state before each step."""
    own, recurrent, *biases = (getattr(node, f"_saved_weight{n}").detach() for n in range(4))
    state, cell = (
        each.detach().reshape(inputs.shape[1], -1) for each in (node._saved_hx_, node._saved_cx_)
    )
    with torch.enable_grad():
        gates = torch.nn.functional.linear(inputs, own).requires_grad_()
        shift = biases[0] + biases[1] if node._saved_has_biases else None
        outputs, states = [], []
        steps = range(len(inputs))
        for step in reversed(steps) if node._saved_reverse else steps:
            states.append(state.detach())
            each = gates[step] + torch.nn.functional.linear(state, recurrent, shift)
            into, forget, new, out = each.chunk(4, 1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            outputs.append(state)
        if node._saved_reverse:
            outputs.reverse()
            states.reverse()
        every = [torch.stack(outputs), state, cell]
        both = zip(every, grads[:3], strict=True)
        there = [(each, grad.reshape(each.shape)) for each, grad in both if grad is not None]
        (found,) = torch.autograd.grad([o for o, _ in there], gates, [g for _, g in there])
    return found, torch.stack(states)
