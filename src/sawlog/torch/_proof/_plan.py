"""How the gradients of batches of one structure are taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from sawlog.torch._graph._autograd_graph import Graph, Node, operation, shape_of, signed
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._mixing import refuse_mixing
from sawlog.torch._graph._operations._example_labels import Where
from sawlog.torch._graph._weight_uses import WeightUses
from sawlog.torch._proof._layout_attributes import may_join_examples

_PICKS = {
    "Index", "IndexSelect", "Gather", "IndexPut", "IndexPutImpl", "IndexAdd", "IndexCopy",
    "Scatter", "ScatterAdd", "ScatterReduce", "MaskedSelect", "MaskedScatter", "Take", "Sort",
    "Topk", "IndexFill", "Put", "TakeAlongDim", "GroupedMm", "Unique",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PlannedUse:
    """A use of a weight that is differentiated example by example.

    Args:
        number: the number of the node in the graph.
        place: the index of the weight among its inputs.
        where: where the examples are in each of its outputs.
        parameters: the names of the parameters whose gradients are taken there.
    """

    number: int
    place: int
    where: tuple[Where | None, ...]
    parameters: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the gradients of batches of one structure are taken.

    Args:
        layouts: where the examples are in the outputs of layer calls, by number.
        by_rule: the names of the blocks whose rows layer rules compute.
        uses: where the gradients of the other blocks are taken.
        picks: the numbers of nodes that pick by values, which may differ in another batch.
        ends: which of the watched edges a backward pass has to reach.
        zeros: the numbers of the first nodes whose gradients were zero in the proof.
        norms: the numbers of batch norms, which mix examples in train mode.
        even: whether the loss is one tensor with a row for each example, joined by one operation.
    """

    layouts: Mapping[int, ExampleLayout]
    by_rule: frozenset[str]
    uses: tuple[PlannedUse, ...]
    picks: tuple[int, ...]
    ends: tuple[int, ...] = ()
    even: bool = False
    zeros: tuple[int, ...] = ()
    norms: tuple[int, ...] = ()

    def refuse_mixing(self, graph: Graph, batch: int) -> None:
        """Raise an ArgumentError for a batch norm that is in train mode now."""
        refuse_mixing([graph.nodes[each] for each in self.norms], batch)

    def holds_for(self, graph: Graph, batch: int, axis: int) -> bool:
        """Return whether a graph of the structure picks within examples, as the proven one."""
        return all(_picks_inside(graph.nodes[each], batch, axis) for each in self.picks)


def picks_of(graph: Graph, finder: WeightUses, batch: int) -> tuple[int, ...]:
    """Return the numbers of the nodes that pick by values."""
    nodes = enumerate(graph.nodes)
    return tuple(
        number
        for number, node in nodes
        if (operation(node) in _PICKS and not finder.picks_by_buffers(node))
        or may_join_examples(node, finder, batch)
    )


def norms_of(graph: Graph) -> tuple[int, ...]:
    """Return the numbers of batch norms."""
    return tuple(n for n, node in enumerate(graph.nodes) if "BatchNorm" in node.name())


def _picks_inside(node: Node, batch: int, axis: int) -> bool:
    """Return whether a node picks for each example from that example only, whatever the values."""
    name = operation(node)
    if name in ("IndexSelect", "Gather"):
        return signed(node._saved_dim) % max(1, len(shape_of((node, 0)))) != axis
    if name == "Index" and axis == 0:
        first = node._saved_indices[0]
        if first is None:
            return True
        if first.dtype == torch.bool or first.numel() != batch:
            return False
        return torch.equal(first.flatten(), torch.arange(batch, device=first.device))
    return False
