"""Capture one batch: hooks on layers and on the loss, from gradients to rows and statistics."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.errors import CaptureError, SawlogError
from sawlog.factored import Pair
from sawlog.run_files._blocks import Block
from sawlog.run_files._log_names import LogName
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._autograd_graph import Graph, graph_of
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._example_sums import ExampleSums
from sawlog.torch._graph._mixing import refuse_mixing
from sawlog.torch._graph._operations import WeightUse
from sawlog.torch._hooks._autograd_patches import Backward, Listener, told
from sawlog.torch._hooks._grad_state import added, copied, grad_state
from sawlog.torch._hooks._hooks import Hooks, LayerCall, in_backward, last_edges
from sawlog.torch._loss._grad_scaler import Scaled
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._terms import Scale, Term, agreed
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._passes import Passes
from sawlog.torch._proof._plan import (
    Plan,
    PlannedUse,
    Prover,
    pair_of,
    pairs_of,
    precision_of,
    projected_gradient,
    summed_matrix,
)
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._pairs import scaled
from sawlog.torch._rows._row_builder import RowBuilder
from sawlog.torch._rows._tensor_logs import TensorLogs


class BatchCapture:
    """The hooks of one batch, and the logs that they collect.

    It decides when gradients are taken and proves them. :class:`RowBuilder` turns them into rows,
    :class:`BatchStatistics` into statistics, and :class:`TensorLogs` keeps forward and backward
    logs. ``scales`` has, for each backward pass, what gradients were multiplied by; None where
    terms of the loss have different scales.

    Args:
        watched: the layers.
        options: what to log.
        batch: the batch.
        rows: builds the rows of blocks.
        statistics: computes the statistics of the batch.
    """

    def __init__(
        self,
        watched: Watched,
        options: Options,
        batch: BatchSpec,
        rows: RowBuilder,
        statistics: BatchStatistics,
    ) -> None:
        self._watched, self._batch = watched, batch
        self._rows, self._statistics = rows, statistics
        self._logs = TensorLogs(batch, options.forward)
        self._wants = frozenset(options.log)
        self.needs_gradients = bool(self._wants & {"grad", "backward"})
        self.hooks = Hooks(
            watched,
            batch.size,
            self._logs.add_forward if "forward" in self._wants else None,
            self.needs_gradients,
        )
        self._loss = LossReader(batch, options.reduction, self.hooks)
        self._scaled, self._factor = Scaled(batch.factor), 1.0
        self._gradients = 0
        self.scales: list[Scale | None] = []
        self._runs_again = False
        self._left: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Collect what happens inside the ``with``."""
        listener = Listener(self._backward_called, self._scaled.add, self._checkpointed)
        with self.hooks.installed(), told(listener):
            yield

    def declare_sum(self) -> None:
        """Declare that the loss is a sum over the examples, so that its graph is not read."""
        self._loss.reduction = "sum"

    # -- backward passes --------------------------------------------------------------------------

    def _checkpointed(self) -> None:
        """A part of the forward pass will be run again, whenever the graph needs it."""
        self._runs_again = True

    def _backward_called(self, backward: Backward) -> Any:
        """``loss.backward()`` was called: gather, and do it."""
        if in_backward() or not self._is_ours(backward):
            return backward.run()
        self._check_kept()
        self._loss.check_grads(backward)
        roots = Roots(backward.losses, backward.grads)
        self._gather(roots, backward.run)
        parameter = next(iter(self._watched.parameters.values()))
        self._left = grad_state(parameter)
        return None

    def _is_ours(self, backward: Backward) -> bool:
        """Whether gradients of watched parameters are wanted, and not those of inputs alone."""
        if not self.needs_gradients:
            return False
        if backward.inputs is None:
            return True
        watched = {id(each) for each in self._watched.parameters.values()}
        return any(id(each) in watched for each in backward.inputs)

    def _check_kept(self) -> None:
        """A second backward pass adds to the first, unless gradients were dropped in between."""
        parameter = next(iter(self._watched.parameters.values()))
        if self._left is not None and self._left != grad_state(parameter):
            raise CaptureError(
                "Gradients were changed or set to zero between two backward passes of one batch, "
                "so it is not clear which of them counts. Hint: torch.autograd.grad(...) for a "
                "gradient that is only used on the way, as that of the inputs."
            )

    def backward(self, loss: Tensor) -> None:
        """Walk back from the loss only as far as is needed; parameters get no gradients."""
        self._gather(Roots([loss], [None]), None)

    def _gather(self, roots: Roots, run: Any) -> None:
        """Gather from one loss; ``run`` is the backward pass of the user."""
        batch = self._batch
        key = (batch.size, batch.axis, batch.views, *self.hooks.calls, *self.hooks.axes)
        graph = graph_of(roots.nodes, key, self.hooks.edges, self._watched.numbers)
        plan = self._watched.plans.get(graph.structure)
        if plan is None and not self._is_seen(roots, graph, run):
            return
        self._factor = self._scaled.factor_of(roots.nodes)
        if plan is None or not plan.holds_for(graph, batch.size, batch.axis):
            self._prove(roots, graph)
            if run is not None:
                run()
            return
        scale, terms = self._loss.scale(roots, plan.even)
        self.scales.append(scale)
        if scale is None:
            with torch.no_grad():
                passes = Passes(terms, roots.starts())
            with self._capturing(plan, graph, 1.0):
                passes.plain(self._ends(plan, graph))
            if run is not None:
                run()
            return
        with self._capturing(plan, graph, scale):
            if run is None:
                roots.backward_to(self._ends(plan, graph))
            else:
                run()

    def _is_seen(self, roots: Roots, graph: Graph, run: Any) -> bool:
        """Whether all of a graph is there, and leads to watched parameters; the rest is done."""
        if graph.named("CheckpointFunction"):
            self._factor = self._scaled.factor_of(roots.nodes)
            self._gather_unseen(roots, run)
            return False
        if self._reaches(graph):
            return True
        if run is None:
            raise CaptureError(
                "The loss does not depend on any watched layer that ran in this batch. Hint: "
                "compute it inside of `with run(data_id=ids):`."
            )
        run()
        return False

    def _ends(self, plan: Plan, graph: Graph) -> list[GradientEdge]:
        """Where a backward pass that only gathers may end."""
        every = self._watched_edges(plan, graph)
        return [every[number] for number in plan.ends]

    def _watched_edges(self, plan: Plan, graph: Graph) -> list[GradientEdge]:
        """The outputs of calls, and the weights that planned uses lead to."""
        found = (graph.nodes[use.number].next_functions[use.place] for use in plan.uses)
        return [*self.hooks.edges, *(GradientEdge(*edge) for edge in found)]

    def _reaches(self, graph: Graph) -> bool:
        """Whether a loss depends on a watched parameter."""
        leaves = graph.leaves()
        return any(id(each) in leaves for each in self._watched.parameters.values())

    @contextlib.contextmanager
    def _capturing(self, plan: Plan, graph: Graph, scale: Scale) -> Iterator[None]:
        """Take gradients as planned."""
        sums = ExampleSums(self._watched.parameters, self._batch.size)
        handles = self._use_hooks(plan.uses, graph, sums)

        def listen(call: LayerCall, grad: Tensor) -> None:
            layout = plan.layouts.get(call.number)
            self._took(call, grad, layout, scale, plan.by_rule)

        try:
            with self.hooks.listening(listen):
                yield
        finally:
            for handle in handles:
                handle.remove()
        for block in self._watched.blocks:
            if block.name not in plan.by_rule and "grad" in self._wants:
                matrix = summed_matrix(block, sums, self._watched.parameters)
                if matrix is not None:
                    self._take(block, pair_of(matrix), scale)

    def _use_hooks(self, uses: Sequence[PlannedUse], graph: Graph, sums: ExampleSums) -> list[Any]:
        by_node: dict[int, list[PlannedUse]] = {}
        for use in uses:
            by_node.setdefault(use.number, []).append(use)

        def hook(planned: list[PlannedUse]) -> Any:
            def came(grads: tuple[Tensor | None, ...]) -> None:
                for each in planned:
                    self._take_use(each, graph, grads, sums)

            return came

        nodes = {number: graph.nodes[number] for number in by_node}
        return [node.register_prehook(hook(by_node[number])) for number, node in nodes.items()]

    def _take_use(
        self,
        planned: PlannedUse,
        graph: Graph,
        grads: Sequence[Tensor | None],
        sums: ExampleSums,
    ) -> None:
        self._gradients += 1
        use = WeightUse(graph.nodes[planned.number], planned.place, planned.number)
        with torch.no_grad(), self.hooks.listening(None):  # layers of parameters alone are walked
            there = [None if grad is None else grad.detach() for grad in grads]
            sums.add(use, there, planned.where, planned.parameters)

    def _prove(self, roots: Roots, graph: Graph) -> None:
        """Take the gradients of a structure that is new, and prove them."""
        refuse_mixing(graph, self._batch.size)
        with torch.no_grad():
            terms = self._loss.terms(roots)
            self._loss.check_weights(terms)
            try:
                self._take_proven(roots, graph, terms)
            except SawlogError:
                raise
            except Exception as error:
                raise CaptureError(
                    "The backward pass of this program cannot be walked over for each example: "
                    f"{type(error).__name__}: {error}. Hint: watch fewer layers by names=."
                ) from error

    def _take_proven(self, roots: Roots, graph: Graph, terms: list[Term]) -> None:
        passes = Passes(terms, roots.starts())
        self.scales.append(passes.scale)
        prover = Prover(self._watched, self._rows, graph, self._batch.size, self._batch.axis)
        proof = prover.prove(passes, self.hooks)
        self._gradients += len(proof.calls) + 1
        for number, (call, grad) in proof.calls.items():
            self._took(call, grad, proof.layouts.get(number), passes.rest, frozenset())
        if "grad" in self._wants:
            for block in self._watched.blocks:
                for pair in proof.pairs[block.name]:
                    self._take(block, pair, passes.rest)
        # What was checkpointed can be read once in a pass, and its nodes not be called besides.
        if proof.plan is not None and not (self._runs_again and proof.plan.uses):
            every = self._watched_edges(proof.plan, graph)
            last = {id(edge) for edge in last_edges(roots.nodes, every)}
            ends = tuple(number for number, edge in enumerate(every) if id(edge) in last)
            plan = dataclasses.replace(proof.plan, ends=ends, even=self._loss.is_even(terms, graph))
            self._watched.plans[graph.structure] = plan

    def _gather_unseen(self, roots: Roots, run: Any) -> None:
        """Gather where a part of the graph is only made in the backward pass.

        That is so with reentrant checkpointing. Rows are compared with what is added to ``.grad``.
        """
        if run is None:
            raise CaptureError(
                "run.backward(loss) cannot walk through reentrant checkpointing. Hint: "
                "checkpoint(..., use_reentrant=False), or loss.backward()."
            )
        scale = agreed(self._loss.terms(roots))
        if scale is None:
            raise CaptureError(
                "The terms of the loss are joined in different ways, and with reentrant "
                "checkpointing they cannot be told apart. Hint: use_reentrant=False."
            )
        before = {n: copied(p.grad) for n, p in self._watched.parameters.items()}
        every = frozenset(block.name for block in self._watched.blocks)
        self.hooks.reentrant = True

        def listen(call: LayerCall, grad: Tensor) -> None:
            layout = self._logs.guessed(call.unit, tuple(grad.shape))
            self._took(call, grad, layout, scale, every)

        try:
            with self.hooks.listening(listen):
                run()
        finally:
            self.hooks.reentrant = False
        self._check_sums(before, scale)

    def _check_sums(self, before: Mapping[str, Tensor | None], scale: Scale) -> None:
        """Compare rows with what a backward pass added to the gradients of parameters."""
        if not self._rows.complete:
            return
        parameters = self._watched.parameters
        changes = {name: added(before[name], p.grad) for name, p in parameters.items()}
        for block in self._watched.blocks:
            want = projected_gradient(self._rows, block, changes, parameters)
            got = self._rows.total(block, scale, self._factor)
            dtype = parameters[block.name].dtype
            size = float(want.norm()) + float(got.norm())
            if float((got - want).norm()) > precision_of(dtype) * size:
                raise CaptureError(
                    f"The gradients of the examples for {block.name!r} do not add up to that of "
                    "the batch: it is used in a way that is not seen through reentrant "
                    "checkpointing. Hint: checkpoint(..., use_reentrant=False)."
                )

    # -- what the hooks bring ---------------------------------------------------------------------

    def _took(
        self,
        call: LayerCall,
        grad: Tensor,
        layout: ExampleLayout | None,
        scale: Scale,
        by_rule: frozenset[str],
    ) -> None:
        """Take the gradient of the output of a call."""
        self._gradients += 1
        self._logs.add_layout(call, layout)
        if "backward" in self._wants:
            self._logs.add_backward(call, grad, layout, scale / self._factor)
        shares = [share for share in call.unit.shares if share.block.name in by_rule]
        if "grad" in self._wants and shares:
            assert layout is not None
            pairs = pairs_of(call, grad, self._batch.size, layout)
            for share in shares:
                self._take(share.block, share.of(pairs[share.part.name]), scale)

    def _take(self, block: Block, pair: Pair, scale: Scale) -> None:
        """Pass the gradients of one use of a block on to rows and statistics."""
        small = self._rows.projected(block, self._batch.chosen_pair(pair))
        if self._rows.needed:
            self._rows.add(block, scaled(small, scale, self._factor, self._batch))
        self._statistics.add(block, small, scale, self._factor)

    # -- the end of the batch ---------------------------------------------------------------------

    def rows(self, examples: int) -> dict[str, Any]:
        """Return all logs of the batch by name, for the ``examples`` to log.

        Raises:
            CaptureError: no gradient was seen.
        """
        if self.needs_gradients and not self._gradients:
            raise CaptureError(
                "No gradient of a watched layer was seen in this batch. Hint: run the forward "
                "pass and loss.backward() inside `with run(data_id=ids):`, not under "
                "torch.no_grad()."
            )
        logs: dict[str, Any] = dict(self._logs.finish())
        if "grad" in self._wants and self._rows.needed:
            for block in self._watched.blocks:
                logs[str(LogName("grad", block.name))] = self._rows.rows(block, examples)
        return logs

    def add_statistics(self, sums: RunStatistics, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics of a pass."""
        self._statistics.add_to(sums, logs, self._watched.blocks, examples)

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the logs to store, as encoded columns."""
        return self._rows.columns(logs)
