"""Losses in which a number that joins the examples is given to all rows before they are joined.

So is a fine-tuning loss that is added to the losses of preferences: ``(each + nll.mean()).mean()``,
or ``nll.mean().expand(batch).mean()``. Its rows are not the examples; what was joined before is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from sawlog.torch._graph._autograd_graph import Edge, Node, operation, shape_of
from sawlog.torch._loss._masks import number_of

_SUMS = {"Add", "Sub", "Rsub"}
_KEEPS = {"Neg", "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone",
          "Alias", "Expand", "Repeat"}  # fmt: skip
_MOST = 32


@dataclasses.dataclass(frozen=True)
class Summand:
    """One of the tensors whose sum is joined.

    Args:
        edge: its edge in the graph.
        path: the nodes that lead to it, each with the index of the input.
        by: the numbers that it is multiplied or divided by on the way, the nearest last.
    """

    edge: Edge
    path: tuple[tuple[Node, int], ...] = ()
    by: tuple[tuple[str, float], ...] = ()

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(shape_of(self.edge))

    def parts(self) -> Iterator[Summand]:
        """Yield the inputs of a sum, or of an operation that keeps values or scales them all."""
        node, _ = self.edge
        inputs = [(i, child) for i, child in enumerate(node.next_functions) if child[0] is not None]
        number = number_of(node) if operation(node) in ("Mul", "Div") else None
        if operation(node) in _SUMS or (
            len(inputs) == 1 and (operation(node) in _KEEPS or number is not None)
        ):
            by = self.by if number is None else (*self.by, (operation(node).lower(), number))
            for place, child in inputs:
                yield Summand(child, (*self.path, (node, place)), by)


def summands_of(edge: Edge, is_joined: Callable[[Node], bool]) -> list[Summand]:
    """Return the summands of a tensor; empty unless one of them is a number that all rows got.

    Args:
        edge: the tensor.
        is_joined: returns whether a number may be computed from examples.
    """
    whole = Summand(edge)
    found: list[Summand] = []
    stack, numbers = [whole], 0
    while stack and len(found) + len(stack) < _MOST:
        each = stack.pop()
        if each.size == 1 < whole.size and is_joined(each.edge[0]):
            found.append(each)
            numbers += 1
            continue
        parts = [*each.parts()]
        stack += reversed(parts)
        if not parts:
            found.append(each)
    return found if numbers and not stack else []
