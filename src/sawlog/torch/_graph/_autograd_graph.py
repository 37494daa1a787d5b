"""The autograd graph of a batch: its nodes in order, and its structure as a hash."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any
Edge = tuple[Node, int]
"""A node, and the number of one of its outputs."""

ACCUMULATE = "torch::autograd::AccumulateGrad"
_LEAF = vars(torch._C._functions)["AccumulateGrad"]

BUILT_IN = {each for each in vars(torch._C._functions).values() if isinstance(each, type)}
"""Node types of PyTorch itself, one for each operation; other nodes are identified by name."""

_VIEWS = {"ReshapeAliasBackward0": "ViewBackward0"}
"""Nodes that ``reshape`` makes, which differ where operations are recorded."""
_KINDS = {
    each: vars(torch._C._functions)[_VIEWS.get(each.__name__, each.__name__)] for each in BUILT_IN
}


_UNKNOWN: Any = object()
_NONE = -(2**40)  # the place of an input without a gradient


@dataclasses.dataclass(frozen=True)
class Graph:
    """All nodes below some roots, each once, in an order that depends on the structure alone.

    Args:
        nodes: the nodes, the roots first.
        structure: a hash, equal for graphs with the same operations and connections.
        roots: the number of roots.
    """

    nodes: tuple[Node, ...]
    structure: int
    roots: int = 1

    def leaves(self) -> dict[int, Node]:
        """Return the nodes that accumulate gradients of leaves, by the ``id`` of the leaf."""
        found = [node for node in self.nodes if node.name() == ACCUMULATE]
        return {id(node.variable): node for node in found}

    def users(self) -> dict[Node, list[tuple[Node, int]]]:
        """Return for each node the nodes that use its outputs, with the number of the input."""
        users: dict[Node, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for place, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    users.setdefault(child, []).append((node, place))
        return users

    def named(self, *parts: str) -> list[Node]:
        """Return the nodes whose name contains one of these parts."""
        return [node for node in self.nodes if any(part in node.name() for part in parts)]


class GraphLeaves:
    """The numbers of watched parameters, by the node that accumulates their gradient.

    Nodes of the parameters of a model are kept, because PyTorch would otherwise create them and
    their Python objects again for every batch, which takes most of the time of :func:`graph_of`.

    Args:
        numbers: the number of each watched parameter, by its ``id``.
        parameters: the ``id`` of every parameter of the model.
    """

    def __init__(self, numbers: Mapping[int, int], parameters: Set[int] = frozenset()) -> None:
        self._numbers, self._parameters = numbers, parameters
        self.kept: dict[Node, int | None] = {}

    def number_of(self, node: Node) -> int | None:
        """Return the number of the parameter of a node; None if it is not watched."""
        leaf = id(node.variable)
        number = self._numbers.get(leaf)
        if leaf in self._parameters:  # other leaves, such as inputs, differ in every batch
            self.kept[node] = number
        return number


def graph_of(
    roots: Iterable[Node],
    more: Sequence[Any] = (),
    edges: Sequence[GradientEdge] = (),
    leaves: GraphLeaves | None = None,
) -> Graph:
    """Return the graph below some roots.

    Most of the time is spent by PyTorch, which creates a Python object for each node.

    Args:
        roots: the nodes to begin with.
        more: further parts of the structure.
        edges: their positions in the graph are part of its structure.
        leaves: the positions of these parameters are part of the structure.
    """
    leaves = GraphLeaves({}) if leaves is None else leaves
    nodes: list[Node] = list(dict.fromkeys(root for root in roots if root is not None))
    order: dict[Node, int] = {node: number for number, node in enumerate(nodes)}
    size = count = len(nodes)
    order[None] = _NONE
    parts: list[Any] = [*more]
    add, place_of, put, leaf = parts.append, order.setdefault, nodes.append, leaves.kept.get
    kinds = _KINDS.get
    for node in nodes:  # grows inside the loop, which runs for every batch and must be fast
        kind = type(node)
        if kind is _LEAF:
            number = leaf(node, _UNKNOWN)
            add(kind)
            add(leaves.number_of(node) if number is _UNKNOWN else number)
            continue
        known = kinds(kind)
        add(_own_kind(node) if known is None else known)
        for child, output in node.next_functions:
            place = place_of(child, size)
            if place == size:
                size += 1
                put(child)
            add(place)
            if output:
                add(-1 - output)  # hash(-1) is hash(-2)
    for edge in edges:
        add((order.get(edge.node), edge.output_nr))
    return Graph(tuple(nodes), hash(tuple(parts)), count)


def _own_kind(node: Node) -> Any:
    """Return what identifies a node that is not of PyTorch itself; compiled graphs all differ.

    The types of compiled graphs are kept, because the hash of a type may be used again.
    """
    name = node.name()
    if not name.startswith("CompiledFunction"):
        return name
    return name, _compiled.setdefault(type(node), len(_compiled))


_compiled: dict[type[Any], int] = {}


def operation(node: Node) -> str:
    """Return the operation that a node differentiates, such as ``"Addmm"``."""
    name: str = node.name()
    return name.partition("Backward")[0]


def root_of(tensor: Tensor) -> Edge:
    """Return the edge of a tensor: the node that computed it, and the number of the output."""
    return tensor.grad_fn, tensor.output_nr


def shape_of(edge: Edge) -> tuple[int, ...]:
    """Return the shape of the tensor at an edge."""
    node, output = edge
    return tuple(int(size) for size in node._input_metadata[output].shape)


def signed(number: int) -> int:
    """Return an integer that a node saved as unsigned 64 bits, with its sign."""
    number = int(number)
    return number - 2**64 if number >= 2**63 else number


def call(node: Node, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs of a node, given those of its outputs.

    The gradient of an input that was broadcast has the shape of the output.
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
    """Call ``torch.autograd.grad`` and keep the graph; None for inputs without a gradient."""
    with reaching(inputs):
        found = torch.autograd.grad(
            list(outputs),
            list(inputs),
            grad_outputs=list(grads),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    return [each.to_dense() if each is not None and each.is_sparse else each for each in found]


_local = threading.local()


@contextlib.contextmanager
def reaching(inputs: Sequence[Any]) -> Iterator[None]:
    """Record which leaves ``torch.autograd.grad`` reaches inside the ``with``: its inputs."""
    before = getattr(_local, "leaves", None)
    nodes = [each.node for each in inputs if not isinstance(each, Tensor)]
    _local.leaves = {id(each) for each in inputs if isinstance(each, Tensor)}
    _local.leaves |= {id(node.variable) for node in nodes if node.name() == ACCUMULATE}
    try:
        yield
    finally:
        _local.leaves = before


def is_reached(node: Node) -> bool | None:
    """Return whether the leaf of a node is reached; None for other nodes, or outside of a pass."""
    leaves = getattr(_local, "leaves", None)
    if leaves is None or node.name() != ACCUMULATE:
        return None
    return id(node.variable) in leaves


def sum_to(tensor: Tensor, shape: Sequence[int], first: int = 0) -> Tensor:
    """Sum over the axes along which a tensor of ``shape`` was broadcast, after the ``first``."""
    extra = tensor.dim() - first - len(shape)
    if extra > 0:
        tensor = tensor.sum(tuple(range(first, first + extra)))
    axes = [
        first + axis
        for axis, size in enumerate(shape)
        if size == 1 and tensor.shape[first + axis] != 1
    ]
    return tensor.sum(axes, keepdim=True) if axes else tensor
