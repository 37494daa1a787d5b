"""Replay a loss with some examples replaced: its terms, and the gradients at terms or layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor, Replacement, is_separate
from sawlog.torch._interactions._replay import Stop, TapeReplay


@dataclasses.dataclass(frozen=True)
class ReplayedLoss:
    """The loss of one replay.

    Args:
        terms: the values of the terms.
        grads: the gradients of the loss there; None if the replay cannot be differentiated.
        roots: the losses.
        states: the states of random generators on the way.
        shapes: a hash of all shapes on the way.
    """

    terms: tuple[Tensor, ...]
    grads: tuple[Tensor, ...] | None
    roots: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    shapes: int


def replay_loss(
    loss: TapedLoss, tensors: Sequence[ExampleTensor], replacement: Replacement | None
) -> ReplayedLoss:
    """Replay a loss, with some examples replaced from the first layers on."""
    at_terms: dict[tuple[int, int], Tensor] = {}

    def keeping(key: tuple[int, int]) -> Callable[[Tensor], Tensor]:
        def keep(value: Tensor) -> Tensor:
            leaf = at_terms[key] = value.detach().requires_grad_(value.is_floating_point())
            return leaf

        return keep

    stops = (
        [] if replacement is None else [stop_to_replace(tensor, replacement) for tensor in tensors]
    )
    keys = [(each.number, each.position) for each in loss.terms]
    stops += [Stop(key[1], key[0], keeping(key)) for key in dict.fromkeys(keys)]
    replay = TapeReplay(loss.tape, loss.end, loss.roots)
    with torch.enable_grad():
        values = replay.run(stops)
    roots = tuple(values[number] for number in loss.roots)
    unique = list(at_terms.values())
    grads: dict[int, Tensor] | None = None
    if all(each.requires_grad for each in roots):
        found = torch.autograd.grad(roots, unique, loss.starts, allow_unused=True)
        if all(each is not None for each in found):
            grads = {id(leaf): each for leaf, each in zip(unique, found, strict=True)}
    terms = [at_terms[key] for key in keys]
    return ReplayedLoss(
        tuple(each.detach() for each in terms),
        None if grads is None else tuple(grads[id(each)] for each in terms),
        tuple(each.detach() for each in roots),
        tuple(replay.states),
        replay.shapes,
    )


@dataclasses.dataclass(frozen=True)
class ReplayedLayers:
    """The values of the example tensors in a replay, and the gradients of the loss there."""

    values: tuple[Tensor, ...]
    grads: tuple[Tensor | None, ...]


def replay_layers(
    loss: TapedLoss, tensors: Sequence[ExampleTensor], replacement: Replacement | None
) -> ReplayedLayers:
    """Replay a loss with gradients as far as the first layers."""
    values: list[Tensor] = []
    edges: list[GradientEdge] = []

    def seeing(tensor: ExampleTensor) -> Callable[[Tensor], Tensor]:
        def see(value: Tensor) -> Tensor:
            if not value.requires_grad:
                value = value.detach().clone().requires_grad_().clone()
            if replacement is not None and is_separate(value):
                replacement.apply(value, tensor.layout)
            values.append(value.detach().clone())
            edges.append(get_gradient_edge(value))
            return value

        return see

    there = [tensor for tensor in tensors if tensor.position <= loss.end]
    stops = [Stop(tensor.position, tensor.number, seeing(tensor)) for tensor in there]
    with torch.enable_grad():
        kept = TapeReplay(loss.tape, loss.end, loss.roots).run(stops)
    roots = [kept[number] for number in loss.roots]
    grads = torch.autograd.grad(roots, edges, loss.starts, allow_unused=True)
    return ReplayedLayers(tuple(values), tuple(grads))


def stop_to_replace(tensor: ExampleTensor, replacement: Replacement) -> Stop:
    """Return the stop of a replay at which the examples of a tensor are replaced."""

    def change(value: Tensor) -> Tensor:
        value = value.clone() if tensor.given else value
        return replacement.apply(value, tensor.layout) if is_separate(value) else value

    return Stop(tensor.position, tensor.number, change)
