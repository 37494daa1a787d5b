"""Find the operations that use parameters.

A parameter may be used in any way: inside or outside a module, twice, as a view, or to compute
another weight. What is computed from parameters alone is a weight too. A use is an operation that
joins a weight with data of the examples. Once it is known which elements of its output belong to
which example, ``_operations`` computes the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    BUILT_IN,
    Graph,
    Node,
    operation,
    shape_of,
)
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._graph._operations._weight_use import WeightUse

_VIEWS = {"View", "UnsafeView", "ReshapeAlias"}
_LOOKUPS = {"Embedding", "Index", "IndexSelect", "Gather"}
_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Where", "MaskedFill", "torch::autograd::CopySlices"}
_REPEATS = {"Expand", "Repeat"}
_WRITES = {"IndexCopy", "IndexPut", "IndexAdd", "Scatter", "ScatterAdd"}
_STEPS = 8
_CHOICES = {"Where", "MaskedFill"}
_PRODUCTS = {"Mm", "Addmm", "Bmm", "Baddbmm"}
_FACTORS = ("self", "mat1", "mat2", "batch1", "batch2")


class WeightUses:
    """Finds the uses of all parameters of a graph.

    The output of an operation on a weight and a constant is a weight, unless the constant belongs
    to an example. Where that is unclear, both the operation and the uses of its output are listed
    as uses. ``unsure`` contains the operation, and measured gradients decide.

    Args:
        graph: the graph.
        batch: the number of examples.
        not_weights: nodes that are known to depend on examples.
        buffers: tensors of the model, including frozen parameters; as constants, they are the same
            for all examples.
        weights: nodes that are known to depend on parameters alone, whatever constants they use.
        known: whether nodes depend on parameters and constants of all examples alone, where the
            operations of the batch were recorded.
    """

    def __init__(
        self,
        graph: Graph,
        batch: int,
        not_weights: Set[Node] = frozenset(),
        buffers: Sequence[Tensor] = (),
        weights: Sequence[Node] = (),
        known: Mapping[Node, bool] | None = None,
    ) -> None:
        self._buffers = {memory_of(each) for each in buffers} - {None}
        self._graph, self._batch, self._not = graph, batch, not_weights
        self.unsure: set[Node] = set()
        self._users = graph.users()
        self._leaves = graph.leaves()
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._known = known or {}
        self._weights: dict[Node, bool] = dict.fromkeys(_below(weights), True)

    def of(self, parameter: Tensor) -> list[WeightUse]:
        """Return all uses of a parameter; an empty list if it is not in the graph."""
        leaf = self._leaves.get(id(parameter))
        if leaf is None:
            return []
        found: list[WeightUse] = []
        stack, seen = [leaf], {leaf}
        while stack:
            for node, place in self._users.get(stack.pop(), []):
                weight = self.is_weight(node)
                if not weight or node in self.unsure:
                    found.append(WeightUse(node, place, self._numbers[node]))
                if weight and node not in seen:
                    seen.add(node)
                    stack.append(node)
        return found

    def numbers(self, nodes: Set[Node]) -> dict[int, Node]:
        """Return nodes by their numbers in the graph."""
        return {self._numbers[node]: node for node in nodes}

    def is_weight(self, node: Node) -> bool:
        """Return whether a node depends on parameters alone, not on any example."""
        stack = [node]
        while stack:
            now = stack[-1]
            if now in self._weights:
                stack.pop()
                continue
            children = [child for child, _ in now.next_functions if child is not None]
            open_ = [child for child in children if child not in self._weights]
            if open_:
                stack.extend(open_)
                continue
            self._weights[now] = self._decided(now, children)
            stack.pop()
        return self._weights[node]

    def _decided(self, node: Node, children: Sequence[Node]) -> bool:
        if node.name() == ACCUMULATE:
            return isinstance(node.variable, nn.Parameter)
        if node in self._not or not children or not all(self._weights[c] for c in children):
            return False
        known = self._known.get(node)
        if known:
            return True
        if operation(node) in _LOOKUPS:
            weight = all(self._is_of_all(each, known) for each in indices_of(node))
        elif operation(node) in _CHOICES and len(children) == len(node.next_functions):
            weight = not self._is_given_to_each(node)
        elif len(children) == len(node.next_functions):
            return known is None or type(node) in BUILT_IN  # others may have data besides
        elif (known is None and self.is_with_buffer(node)) or _is_sum_of_product(node):
            weight = True
        elif operation(node) == "NativeBatchNorm" and shape_of((node, 0))[0] == 1:
            return True  # weight standardisation
        elif operation(node) in _ELEMENTWISE:  # with a constant
            shapes = {shape_of(edge) for edge in node.next_functions if edge[0] is not None}
            weight = shape_of((node, 0)) in shapes and not self._is_given_to_each(node)
        elif operation(node) in _WRITES:
            weight = True  # rows of a table, such as trained tokens of a frozen embedding
        else:
            weight = not self._has_room(node)
        if weight:
            self.unsure.add(node)
        return weight

    def _is_given_to_each(self, node: Node) -> bool:
        """Return whether a weight was repeated for each example before a constant joined it.

        The constant then probably belongs to the examples, such as inputs that a token is added to.
        """
        for child, output in node.next_functions:
            for _ in range(_STEPS):
                if child is None or not child.next_functions:
                    break
                below = child.next_functions[0]
                if operation(child) in _REPEATS and below[0] is not None:
                    shape, before = shape_of((child, output)), shape_of(below)
                    if shape[:1] == (self._batch,) and (len(before) < len(shape) or before[0] == 1):
                        return True
                child, output = below
        return False

    def is_with_buffer(self, node: Node) -> bool:
        """Return whether the constant in a product is a buffer of the model."""
        if operation(node) not in _PRODUCTS:
            return False
        every = (getattr(node, f"_saved_{each}", None) for each in _FACTORS)
        there = [each for each in every if isinstance(each, Tensor)]
        return bool(there) and all(memory_of(each) in self._buffers for each in there)

    def picks_by_buffers(self, node: Node) -> bool:
        """Return whether a node picks parts of a weight by buffers of the model."""
        every = indices_of(node)
        return (
            bool(every)
            and self.is_weight(node)
            and all(memory_of(each) in self._buffers for each in every)
        )

    def _has_room(self, node: Node) -> bool:
        """Return whether an axis of the output of a node, except the last, could be the examples.

        A layer may flatten its inputs, and restore the shape of its output.
        """
        users = [user for user, _ in self._users.get(node, []) if operation(user) in _VIEWS]
        shapes = [shape_of((each, 0)) for each in users] or [shape_of((node, 0))]
        return any(
            size % self._batch == 0 for shape in shapes if shape[:1] != (1,) for size in shape[:-1]
        )

    def _is_of_all(self, numbers: Tensor, known: bool | None) -> bool:
        """Return whether all examples have the same indices in a lookup, such as positions."""
        if known is None and memory_of(numbers) in self._buffers:
            return True
        if numbers.dtype == torch.bool:
            return False
        if not numbers.dim() or numbers.shape[0] == 1 or numbers.shape[0] % self._batch:
            return True
        if numbers.dim() == 1:
            return torch.equal(numbers, torch.arange(len(numbers), device=numbers.device))
        return min(numbers.shape) > 1 and torch.equal(numbers[1:, 1:], numbers[:-1, :-1])


def _below(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes, and all that they were computed from."""
    found = dict.fromkeys(node for node in nodes if node is not None)
    stack = list(found)
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in found:
                found[child] = None
                stack.append(child)
    return list(found)


def _is_sum_of_product(node: Node) -> bool:
    """Return whether a constant is added to a product of weights, as a frozen weight is in LoRA."""
    names = ("Addmm", "Baddbmm")
    return operation(node) in names and all(child for child, _ in node.next_functions[1:])


def indices_of(node: Node) -> list[Tensor]:
    """Return the indices by which an operation picks."""
    found = getattr(node, "_saved_indices", None)
    found = getattr(node, "_saved_index", None) if found is None else found
    several = found if isinstance(found, (tuple, list)) else [found]
    return [each for each in several if isinstance(each, Tensor)]
