"""Capture one batch: from hooks on layers and on the loss to rows and statistics.

A backward pass is captured in one of three ways: by the plan of its structure, by proving a new
structure, or through reentrant checkpointing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.errors import CaptureError, SawlogError
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import RunStatistics
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._capture._asked_blocks import asked_blocks
from sawlog.torch._capture._batch_logs import BatchLogs, PairMap
from sawlog.torch._capture._batch_recording import BatchRecording
from sawlog.torch._capture._planned_pass import PlannedPass, ends_of, watched_edges
from sawlog.torch._capture._reentrant_pass import NestedBackward, ReentrantPass
from sawlog.torch._capture._region_problems import region_problems
from sawlog.torch._graph._autograd_graph import Graph, gradients, graph_of, root_of
from sawlog.torch._graph._mixing import refuse_mixing
from sawlog.torch._hooks._autograd_patches import Backward, Listener, patched
from sawlog.torch._hooks._grad_state import grad_state
from sawlog.torch._hooks._hooks import Hooks, in_backward
from sawlog.torch._loss._declared import Items
from sawlog.torch._loss._grad_scaler import ScaledLosses
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._quotients import refuse_quotient
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._terms import Scale, Term
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._layout_attributes import values_at
from sawlog.torch._proof._passes import Passes
from sawlog.torch._proof._plan import Plan
from sawlog.torch._proof._prover import Prover
from sawlog.torch._proof._summands import is_zero
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._row_builder import RowBuilder

_PROVEN_AGAIN = 16
"""From this batch of a structure on, the proof is repeated each time that the count has doubled."""


class BatchCapture:
    """The hooks of one batch, and the logs that they collect.

    It decides when gradients are taken and proves them; :class:`BatchLogs` collects them.
    ``scales`` has, for each backward pass, what gradients were multiplied by; None where terms of
    the loss have different scales.

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
        self._logs = BatchLogs(watched, options, batch, rows, statistics)
        self.needs_gradients = self._logs.needs_gradients
        forward = self._logs.tensors.add_forward if "forward" in self._logs.wants else None
        self._hooks = Hooks(watched, batch.size, forward, self.needs_gradients)
        self._scaled = ScaledLosses(batch.factor)
        self._loss = LossReader(batch, options.reduction, self._hooks, self._scaled)
        self.scales: list[Scale | None] = []
        self._checkpointed = self._refuses_quotients = False
        moments = bool({"kfac", "ekfac"} & {*options.statistic})
        self._recording = BatchRecording(watched, self._hooks, batch, self.needs_gradients, moments)
        self._left: list[Any] | None = None
        """The state of ``.grad`` that the last backward pass left, see :func:`grad_state`."""
        self._reentrant = ReentrantPass(watched, self._hooks, self._loss, batch, self._logs)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Capture forward and backward passes inside the ``with``."""
        listener = Listener(self._on_backward, self._scaled.add, self._on_checkpoint)
        with self._hooks.installed(), patched(listener), self._recording.active():
            yield

    def ignoring(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which forward passes are not captured."""
        return self._hooks.listening(None)

    def compute_logs_only(self) -> None:
        """Declare that :meth:`backward` runs the backward pass of this batch, and nothing else."""
        self._hooks.logs_only = True

    def skip_interactions(self) -> None:
        """Declare that examples are also run alone, so that interactions need not be searched."""
        self._recording.skip()

    def declare_sum(self) -> None:
        """Declare that the loss is a sum over the examples, so that its graph is not read."""
        self._loss.reduction = "sum"

    def refuse_quotients(self) -> None:
        """Refuse a loss that is divided by what may be a number of micro-batches."""
        self._refuses_quotients = True

    def declare_loss(self, loss: Tensor) -> None:
        """Declare which tensor is the loss, whatever it is multiplied with afterwards."""
        self._loss.losses.add(loss)

    def declare_items(self, counts: Any, total: Any, times: float) -> None:
        """Declare how many items of each example the loss counts, and by how many it divides."""
        self._loss.items = Items.read(counts, total, times, self._batch.size)

    def correct(self, correction: PairMap | None) -> None:
        """Apply a map to gradients before they are projected; None applies none."""
        self._logs.correction = correction

    @property
    def factor(self) -> float:
        """By what the loss was multiplied where the last backward pass started."""
        return self._logs.factor

    def rows(self, examples: int) -> dict[str, Any]:
        """Return all logs of the batch by name, for the ``examples`` to log.

        Raises:
            CaptureError: no gradient was seen.
        """
        return self._logs.rows(examples)

    def add_statistics(self, sums: RunStatistics, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics of a pass."""
        self._logs.add_statistics(sums, logs, examples)

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the logs to store, as encoded columns."""
        return self._logs.columns(logs)

    # -- backward passes --------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass only as far as logs need it; parameters get no gradients."""
        with self._recording.paused():
            self._capture(Roots([loss], [None]), None)

    def _on_checkpoint(self) -> None:
        """Note that a part of the forward pass will run again during the backward pass."""
        self._checkpointed = True

    def _on_backward(self, backward: Backward) -> Any:
        """Capture the ``loss.backward()`` that the user called, and run it."""
        if in_backward():
            self._reentrant.enter(backward.losses)
        elif self._is_ours(backward):
            with self._recording.paused():
                return self._on_loss(backward)
        return backward.run()

    def _on_loss(self, backward: Backward) -> None:
        """Capture the backward pass of the loss, and run it."""
        if self._hooks.regions is not None and self._hooks.regions.ran_light:
            raise CaptureError(
                "A step of run.extract called backward, and compiled modules computed only what "
                "logs need. Hint: return the loss, which run.extract differentiates."
            )
        self._check_kept()
        self._loss.check_grads(backward)
        if self._refuses_quotients and not self._loss.losses and self._loss.items is None:
            for loss in backward.losses:
                refuse_quotient(root_of(loss))
        self._logs.asked = asked_blocks(self._watched, backward.inputs)
        run = functools.partial(backward.run, self._hooks.probes)
        self._capture(Roots(backward.losses, backward.grads), run)
        self._left = grad_state(self._watched.parameters.values())

    def _is_ours(self, backward: Backward) -> bool:
        """Return whether gradients of watched parameters are requested, not only of inputs."""
        if not self.needs_gradients:
            return False
        if backward.inputs is None:
            return True
        watched = {id(each) for each in self._watched.parameters.values()}
        return any(id(each) in watched for each in backward.inputs)

    def _check_kept(self) -> None:
        """Refuse a second backward pass if gradients were changed since the first one."""
        if self._left is None:
            return
        if self._left != grad_state(self._watched.parameters.values()):
            raise CaptureError(
                "Gradients were changed or set to zero between two backward passes of one batch, "
                "so it is not clear which of them counts. Hint: use torch.autograd.grad(...) for a "
                "gradient that is only used on the way, such as that of the inputs."
            )

    def _capture(self, roots: Roots, run: Any) -> None:
        """Capture one loss; ``run`` is the backward pass of the user, None for ``run.backward``.

        A graph whose structure has a plan is captured by it, if the plan holds for this graph.
        Otherwise the gradients are taken and proven first, and the user's pass runs after that.
        """
        batch, regions = self._batch, self._watched.regions
        key = (batch.size, batch.axis, batch.views, *self._hooks.calls, *self._hooks.axes)
        graph = graph_of(roots.nodes, key, self._hooks.edges, self._watched.leaves)
        if regions is not None:
            regions.prefers_eager = run is None and not self._hooks.logs_only
        plan = self._light_plan(key, graph, roots)
        light = plan is not None
        plan = self._plan_of(graph) if plan is None else plan
        if plan is None and not self._is_visible(roots, graph, run):
            return
        self._logs.factor = self._factor_of(roots)
        due = self._recording.is_due(graph, roots)
        if plan is None or due or not self._holds(plan, graph, roots, light):
            try:
                self._prove(roots, graph)
            except NestedBackward:
                self._watched.nested.add(graph.structure)
                self._reentrant.capture(roots, graph, run)
                return
            self._confirm_regions(key, self._plan_of(graph))
            if run is not None:
                run()
            return
        if not light:
            self._confirm_regions(key, plan)
        planned = PlannedPass(plan, graph, self._hooks, self._watched, batch.size, self._logs)
        scale, terms = self._loss.scale(roots, plan.even)
        self._loss.check_weights(terms)
        self.scales.append(scale)
        if scale is None:
            with torch.no_grad():
                passes = Passes(terms, roots.starts())
            with planned.capturing(1.0):
                passes.plain(planned.ends())
            if run is not None:
                run()
            return
        with planned.capturing(scale):
            if run is None:
                roots.backward_to(planned.ends())
            else:
                run()

    def _plan_of(self, graph: Graph) -> Plan | None:
        """Return the plan of a structure whose examples are moved alike; None if not proven yet."""
        attributes = self._watched.layout_attributes.get(graph.structure)
        if attributes is None:
            return None
        values = values_at(graph, attributes)
        found: Plan | None = self._watched.plans.get((graph.structure, values))
        return found

    def _holds(self, plan: Plan, graph: Graph, roots: Roots, light: bool) -> bool:
        """Return whether a plan holds for another graph of its structure without a new proof."""
        batch, counts = self._batch, self._watched.batches
        counts[graph.structure] = count = counts.get(graph.structure, 1) + 1
        compiled = light or self._hooks.regions is not None
        if not compiled and count >= _PROVEN_AGAIN and count & (count - 1) == 0:
            return False
        plan.refuse_mixing(graph, batch.size)
        return plan.holds_for(graph, batch.size, batch.axis) and self._still_zero(
            plan, graph, roots
        )

    def _still_zero(self, plan: Plan, graph: Graph, roots: Roots) -> bool:
        """Return whether gradients that were zero in the proof are zero now, too.

        The proof shows nothing about them. An example is a term whose weight was zero.
        """
        if not plan.zeros:
            return True
        found: list[bool] = []
        handles = [
            graph.nodes[number].register_prehook(lambda grads: found.append(not is_zero(grads)))
            for number in plan.zeros
        ]
        starts = roots.starts()
        outputs = [GradientEdge(*edge) for edge in starts]
        edges = watched_edges(plan, graph, self._hooks)
        try:
            gradients(outputs, [edges[number] for number in plan.ends], list(starts.values()))
        finally:
            for handle in handles:
                handle.remove()
        return not any(found)

    def _light_plan(self, key: Hashable, graph: Graph, roots: Roots) -> Plan | None:
        """Return the plan of a batch whose compiled regions computed only what logs need.

        Their layers were called as in a batch that was proven, and their code was compared with
        the modules as written, so the plan of that batch holds.
        """
        regions = self._hooks.regions
        if regions is None or not regions.ran_light:
            return None
        plan: Plan | None = self._watched.light_plans.get(key)
        if plan is None:
            raise CaptureError(
                "Layers of compiled modules were called in another order, or with outputs of other "
                "shapes, than in the batch that was proven. Hint: "
                'torch.compiler.set_stance("force_eager") runs the model as it is written.'
            )
        ends = ends_of(plan, graph, self._hooks, roots.nodes)
        return dataclasses.replace(plan, ends=ends)

    def _confirm_regions(self, key: Hashable, plan: Plan | None) -> None:
        """Let compiled modules stay compiled in further batches, where the plan allows it."""
        if self._hooks.regions is None:
            return
        if self._hooks.logs_only:
            if plan is None or plan.uses or plan.picks or plan.zeros or self._checkpointed:
                return  # as written, which is faster than to compute the gradients of weights
            self._watched.light_plans[key] = plan
        problem = region_problems(plan, self._watched.parameters, self._checkpointed)
        self._watched.confirmed.update(self._hooks.regions.confirm(problem))

    def _factor_of(self, roots: Roots) -> float:
        """Return by what the loss was multiplied where the backward pass starts."""
        if self._loss.losses:
            with torch.no_grad():
                return self._loss.losses.factor(roots.starts())
        return self._scaled.factor_of(roots.nodes)

    def _is_visible(self, roots: Roots, graph: Graph, run: Any) -> bool:
        """Return whether the graph is complete and reaches watched parameters; else run it here."""
        if graph.named("CheckpointFunction") or graph.structure in self._watched.nested:
            self._logs.factor = self._factor_of(roots)
            self._reentrant.capture(roots, graph, run)
            return False
        leaves = graph.leaves()
        if any(id(each) in leaves for each in self._watched.parameters.values()):
            return True
        if run is None:
            raise CaptureError(
                "The loss does not depend on any watched layer that ran in this batch. Hint: "
                "compute it inside `with run(data_id=ids):`."
            )
        run()
        return False

    def _prove(self, roots: Roots, graph: Graph) -> None:
        """Take the gradients of a new structure, and prove them."""
        refuse_mixing(graph.nodes, self._batch.size)
        with torch.no_grad():
            terms = self._loss.terms(roots)
            self._loss.check_weights(terms)
            try:
                self._take_proven(roots, graph, terms)
            except SawlogError:
                self._recording.was_refused()
                raise
            except Exception as error:
                raise CaptureError(
                    "The backward pass of this program cannot be repeated for each example: "
                    f"{type(error).__name__}: {error}. Hint: watch fewer layers by names=."
                ) from error

    def _take_proven(self, roots: Roots, graph: Graph, terms: list[Term]) -> None:
        passes = Passes(terms, roots.starts())
        self.scales.append(passes.scale)
        size, axis, logs = self._batch.size, self._batch.axis, self._logs
        proof = Prover(self._watched, logs.row_builder, graph, size, axis).prove(
            passes, self._hooks
        )
        logs.gradients += len(proof.calls) + 1
        for number, (call, grad) in proof.calls.items():
            logs.add_call(call, grad, proof.layouts.get(number), passes.rest, frozenset())
        if "grad" in logs.wants:
            for block in self._watched.blocks:
                for pair, inputs in proof.uses_of(block):
                    logs.add_pair(block, pair, passes.rest, inputs)
        self._recording.check(graph, roots, passes, proof)
        plan = proof.plan
        # Checkpointed nodes are recomputed once in a pass, so they cannot be called besides.
        if plan is not None and not (self._checkpointed and plan.uses):
            ends = ends_of(plan, graph, self._hooks, roots.nodes)
            even = self._loss.is_even(terms, graph)
            self._watched.layout_attributes[graph.structure] = proof.attributes
            values = values_at(graph, proof.attributes)
            plan = dataclasses.replace(plan, ends=ends, even=even)
            self._watched.plans[graph.structure, values] = plan
