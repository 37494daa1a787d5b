"""The autograd graph of a batch: its nodes in order, its structure, and what uses what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any
Edge = tuple[Node, int]
"""A node, and which of its outputs."""

ACCUMULATE = "torch::autograd::AccumulateGrad"
_LEAF = vars(torch._C._functions)["AccumulateGrad"]

_BUILT_IN = {each for each in vars(torch._C._functions).values() if isinstance(each, type)}
"""The types of nodes of PyTorch itself, each for one operation; those of others are named."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """All nodes below some roots, each once, in an order that only the structure decides.

    Args:
        nodes: the nodes, the roots first.
        structure: the same for graphs of the same operations that are connected in the same way.
        roots: how many of the nodes are roots.
    """

    nodes: tuple[Node, ...]
    structure: int
    roots: int = 1

    def leaves(self) -> dict[int, Node]:
        """The nodes that collect the gradients of parameters, by the ``id`` of the parameter."""
        found = [node for node in self.nodes if node.name() == ACCUMULATE]
        return {id(node.variable): node for node in found}

    def users(self) -> dict[Node, list[tuple[Node, int]]]:
        """For each node, the nodes that its outputs go to, with the number of the input."""
        users: dict[Node, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for place, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    users.setdefault(child, []).append((node, place))
        return users

    def named(self, *parts: str) -> list[Node]:
        """The nodes whose name contains one of these."""
        return [node for node in self.nodes if any(part in node.name() for part in parts)]


def graph_of(
    roots: Iterable[Node],
    more: Sequence[Any] = (),
    edges: Sequence[GradientEdge] = (),
    leaves: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """Walk over the graph below some roots.

    Most of the time is that of PyTorch, which makes an object for each node.

    Args:
        roots: the nodes to begin with.
        more: what counts as a part of the structure besides.
        edges: where they are in the graph is a part of its structure.
        leaves: numbers for some parameters, by their ``id``; where these are is a part of it too.
    """
    order: dict[Node, int] = {}
    nodes: list[Node] = []
    said: list[Any] = [*more]
    say, known, put, leaf = said.append, order.get, nodes.append, leaves.get
    for root in roots:
        if root is not None and root not in order:
            order[root] = len(nodes)
            nodes.append(root)
    size = begun = len(nodes)
    for node in nodes:  # which grows meanwhile; it has to be fast
        kind = type(node)
        if kind is _LEAF:
            say(kind)
            say(leaf(id(node.variable)))
            continue
        say(kind if kind in _BUILT_IN else node.name())
        for child, output in node.next_functions:
            place = known(child)
            if place is None:
                if child is None:
                    say(None)
                    continue
                place = order[child] = size
                size += 1
                put(child)
            say(place)
            if output:
                say(-1 - output)  # hash(-1) is hash(-2)
    for edge in edges:
        say((known(edge.node), edge.output_nr))
    return Graph(tuple(nodes), hash(tuple(said)), begun)


def operation(node: Node) -> str:
    """What a node differentiates, as ``"Addmm"``; the name of a function of the user is whole."""
    name: str = node.name()
    return name.partition("Backward")[0]


def root_of(tensor: Tensor) -> Edge:
    """The node that made a tensor."""
    return tensor.grad_fn, tensor.output_nr


def shape_of(edge: Edge) -> tuple[int, ...]:
    """The shape of the tensor at an edge."""
    node, output = edge
    return tuple(int(size) for size in node._input_metadata[output].shape)


def signed(number: int) -> int:
    """Return a number that a node saved, with its sign: nodes save them as unsigned 64 bit."""
    number = int(number)
    return number - 2**64 if number >= 2**63 else number


def call(node: Node, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs of a node, given those of its outputs.

    Where an input was broadcast, its gradient has the shape of the output.
    """
    found = node.apply(*grads) if hasattr(node, "apply") else node(*grads)
    return found if isinstance(found, tuple) else (found,)


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


def sum_to(tensor: Tensor, shape: Sequence[int], first: int = 0) -> Tensor:
    """Sum over the axes along which a tensor of ``shape`` was broadcast.

    The first axes are left as they are.
    """
    extra = tensor.dim() - first - len(shape)
    if extra > 0:
        tensor = tensor.sum(tuple(range(first, first + extra)))
    axes = [
        first + axis
        for axis, size in enumerate(shape)
        if size == 1 and tensor.shape[first + axis] != 1
    ]
    return tensor.sum(axes, keepdim=True) if axes else tensor
