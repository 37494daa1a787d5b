"""Capture a backward pass of a structure that was proven before, by its plan."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._capture._batch_logs import BatchLogs
from sawlog.torch._graph._autograd_graph import Graph, Node
from sawlog.torch._graph._example_sums import ExampleSums
from sawlog.torch._graph._last_edges import last_edges
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._hooks._hooks import Hooks, LayerCall
from sawlog.torch._loss._terms import Scale
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._block_gradients import pair_of, summed_matrix
from sawlog.torch._proof._plan import Plan, PlannedUse


@dataclasses.dataclass(frozen=True)
class PlannedPass:
    """One backward pass, and the plan of its structure.

    Args:
        plan: how gradients are taken.
        graph: the graph of the loss.
        hooks: on the modules.
        watched: the layers.
        batch: the number of examples.
        logs: receives the gradients.
    """

    plan: Plan
    graph: Graph
    hooks: Hooks
    watched: Watched
    batch: int
    logs: BatchLogs

    def ends(self) -> list[GradientEdge]:
        """Return the edges at which a backward pass that only captures may end."""
        every = watched_edges(self.plan, self.graph, self.hooks)
        return [every[number] for number in self.plan.ends]

    @contextlib.contextmanager
    def capturing(self, scale: Scale) -> Iterator[None]:
        """Take gradients as planned, and scale those of each example, inside the ``with``."""
        plan, logs = self.plan, self.logs
        sums = ExampleSums(self.watched.parameters, self.batch)
        handles = self._use_hooks(sums)

        def listen(call: LayerCall, grad: Tensor) -> None:
            logs.add_call(call, grad, plan.layouts.get(call.number), scale, plan.by_rule)

        try:
            with self.hooks.listening(listen):
                yield
        finally:
            for handle in handles:
                handle.remove()
        for block in self.watched.blocks:
            if block.name not in plan.by_rule and "grad" in logs.wants:
                matrix = summed_matrix(block, sums, self.watched.parameters)
                if matrix is not None:
                    logs.add_pair(block, pair_of(matrix), scale, block.inputs)

    def _use_hooks(self, sums: ExampleSums) -> list[Any]:
        """Add hooks to the operations that are differentiated example by example."""
        by_node: dict[int, list[PlannedUse]] = {}
        for use in self.plan.uses:
            by_node.setdefault(use.number, []).append(use)

        def hook(planned: list[PlannedUse]) -> Any:
            def add_uses(grads: tuple[Tensor | None, ...]) -> None:
                for each in planned:
                    self._add_use(each, grads, sums)

            return add_uses

        nodes = {number: self.graph.nodes[number] for number in by_node}
        return [node.register_prehook(hook(by_node[number])) for number, node in nodes.items()]

    def _add_use(
        self, planned: PlannedUse, grads: Sequence[Tensor | None], sums: ExampleSums
    ) -> None:
        self.logs.gradients += 1
        use = WeightUse(self.graph.nodes[planned.number], planned.place, planned.number)
        # Layers that are computed from parameters alone are walked here, and must not be captured.
        with torch.no_grad(), self.hooks.listening(None):
            there = [None if grad is None else grad.detach() for grad in grads]
            sums.add(use, there, planned.where, planned.parameters)


def watched_edges(plan: Plan, graph: Graph, hooks: Hooks) -> list[GradientEdge]:
    """Return the outputs of layer calls, and the weights of planned uses."""
    found = (graph.nodes[use.number].next_functions[use.place] for use in plan.uses)
    return [*hooks.edges, *(GradientEdge(*edge) for edge in found)]


def ends_of(plan: Plan, graph: Graph, hooks: Hooks, roots: Sequence[Node]) -> tuple[int, ...]:
    """Return which of the watched edges a backward pass has to reach to pass all of them."""
    every = watched_edges(plan, graph, hooks)
    last = {id(edge) for edge in last_edges(roots, every)}
    return tuple(number for number, edge in enumerate(every) if id(edge) in last)
