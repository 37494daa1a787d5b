"""Hooks that ``torch.compile`` traces, and the probes that receive gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Template = tuple[tuple[int, ...], torch.dtype, torch.device]
"""The shape, dtype and device of an output."""


class _Probe(torch.autograd.Function):
    """The identity of its first argument; the second gets the gradient of the output."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, probe: Tensor) -> Tensor:
        del ctx, probe
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        del ctx
        return grad, grad


class Trace:
    """What the traced hooks of one region share: probes in, layer calls out.

    A call is the number of the unit, its arguments, the shape of its output, and the output itself
    if it is kept.
    """

    def __init__(self) -> None:
        self.probes: Sequence[Tensor | None] = ()
        self.calls: list[tuple[int, Any, Any, tuple[int, ...], Tensor | None]] = []
        self.keeps_outputs = False

    def hook(self, number: int) -> Callable[..., Any]:
        """Return the forward hook of a unit, which ``torch.compile`` can trace."""

        def traced(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            del module
            place = len(self.calls)
            tensor = output if isinstance(output, Tensor) else output[0]
            # A copy, because the compiler would take outputs that share memory around the probe.
            kept = tensor.detach().clone() if self.keeps_outputs else None
            shape = tuple(tensor.shape)
            self.calls.append((number, detached(args), detached(kwargs), shape, kept))
            probe = self.probes[place] if place < len(self.probes) else None
            if probe is None:
                return None
            probed = _Probe.apply(tensor, probe)
            return probed if isinstance(output, Tensor) else (probed, *output[1:])

        return traced


def new_probe(template: Template) -> Tensor:
    """Return a zero of a shape, which takes the memory of one element."""
    shape, dtype, device = template
    return torch.zeros((), dtype=dtype, device=device).expand(shape).detach().requires_grad_()


def detached(value: Any) -> Any:
    """Return a value with all tensors in tuples, lists and dicts detached."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {key: detached(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple([detached(each) for each in value])
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value of any library that ``torch`` can flatten."""
    for each in torch.utils._pytree.tree_leaves(value):
        if isinstance(each, Tensor):
            yield each
