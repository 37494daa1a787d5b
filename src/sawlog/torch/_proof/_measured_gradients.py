"""Gradients of layer calls and operations, measured by several backward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.torch._graph._autograd_graph import ACCUMULATE, Graph, Node
from sawlog.torch._graph._example_layout import Codes
from sawlog.torch._graph._last_edges import last_edges
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._hooks._hooks import Hooks, LayerCall
from sawlog.torch._proof._passes import Passes
from sawlog.torch._proof._summands import Summands, is_zero
from sawlog.torch._rows._nonfinite import check_finite


class MeasuredGradients:
    """Gradients of layer calls, operations and parameters in all passes over one graph.

    Args:
        every: the factors of the examples.
        parameters: the parameters whose gradients are compared.
    """

    def __init__(self, every: Codes, parameters: Mapping[str, Tensor]) -> None:
        self.codes, self._parameters = every, parameters
        self.calls: dict[int, LayerCall] = {}
        self.of_calls: dict[int, list[Tensor]] = {}
        self.of_nodes: dict[int, list[tuple[Tensor | None, ...]]] = {}
        self.totals: list[dict[str, Tensor | None]] = []
        self.zeros: tuple[int, ...] = ()
        """The numbers of nodes whose gradients are zero, below nodes whose are not."""

    def run(
        self,
        passes: Passes,
        hooks: Hooks,
        graph: Graph,
        uses: Sequence[WeightUse],
        more: Mapping[int, Node],
        summands: Summands,
    ) -> None:
        """Run a plain backward pass, and one for each code; ``more`` are other nodes to record."""
        nodes = {use.number: use.node for use in uses} | dict(more)
        handles = [node.register_prehook(self._recorder(number)) for number, node in nodes.items()]
        handles += summands.hooks()
        edges = [*hooks.edges, *(GradientEdge(*use.weight) for use in uses)]
        try:
            with hooks.listening(self._record):
                summands.next_pass()
                with self._finding_zeros(graph):
                    passes.plain(last_edges(graph.nodes[: graph.roots], edges) or edges)
                for factors in self.codes.factors:
                    summands.next_pass()
                    wanted = [*self._parameters.values(), *hooks.probes]
                    found = passes.weighted(wanted, factors)[: len(self._parameters)]
                    self.totals.append(dict(zip(self._parameters, found, strict=True)))
                    check_finite(self.totals[-1])
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _finding_zeros(self, graph: Graph) -> Iterator[None]:
        """Find the nodes whose gradients are zero in the pass inside the ``with``."""
        found: dict[int, bool] = {}

        def finder(number: int) -> Any:
            def find(grads: tuple[Tensor | None, ...]) -> None:
                found[number] = is_zero(grads)

            return find

        inner = [(n, node) for n, node in enumerate(graph.nodes) if node.name() != ACCUMULATE]
        handles = [node.register_prehook(finder(number)) for number, node in inner]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        numbers = {node: number for number, node in inner}
        below = {
            numbers.get(child)
            for number, node in inner
            if found.get(number)
            for child, _ in node.next_functions
        }
        self.zeros = tuple(number for number, zero in found.items() if zero and number not in below)

    def _record(self, call: LayerCall, grad: Tensor) -> None:
        self.calls[call.number] = call
        self.of_calls.setdefault(call.number, []).append(grad)

    def _recorder(self, number: int) -> Any:
        def record(grads: tuple[Tensor | None, ...]) -> None:
            there = tuple(None if grad is None else grad.detach() for grad in grads)
            self.of_nodes.setdefault(number, []).append(there)

        return record
