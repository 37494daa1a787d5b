"""What a batch gathers: rows for the store, and statistics, from the gradients of its layers."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from sawlog.errors import ArgumentError, CaptureError, SawlogError
from sawlog.run_files._encode import encode
from sawlog.run_files._log_names import LogName
from sawlog.run_files._options import Options
from sawlog.run_files._statistics import Statistics
from sawlog.torch._examples import Examples
from sawlog.torch._graph import Edge, Graph, graph_of, root_of, shape_of
from sawlog.torch._hooks import Call, Hooks, first_tensor, in_backward, last_edges
from sawlog.torch._layers import FunctionRule, GeneralRule
from sawlog.torch._layout import Layout
from sawlog.torch._loss import Scale, Term, agreed, even_scale, is_even, terms_of
from sawlog.torch._matrices import Matrices
from sawlog.torch._operations import WeightUse
from sawlog.torch._outer import Outer
from sawlog.torch._passes import Passes
from sawlog.torch._patch import Backward, Listener, told
from sawlog.torch._plan import (
    Plan,
    PlannedUse,
    Prover,
    pair_of,
    pairs_of,
    precision_of,
    projected_gradient,
    summed_matrix,
)
from sawlog.torch._rows import BlockRows
from sawlog.torch._scaled import Scaled
from sawlog.torch._sums import ExampleSums
from sawlog.torch._watched import Unit, Watched
from sawlog.torch._weights import check_weights


class Gathering:
    """One batch: hooks that gather, and what they gathered.

    ``scales`` has, for each backward pass, by what the gradients of examples were multiplied; None
    where terms of the loss have different scales.

    Args:
        watched: what to look at.
        options: what to log.
        matrices: projections and eigenbases.
        statistics: where sums go; they are added when the batch is complete.
        batch: how many examples there are.
        todo: which of them are to be logged, as a mask ``[batch]``; None is all.
        mask: which positions of each example count, ``[batch, positions]``.
        factor: the scale of the ``GradScaler`` that was given; 1.0 is none.
        axis: the axis of the examples.
        rooms: memory that batches share; what :meth:`rows` returns is then good until the next.
        views: how many times the batch was concatenated with itself, as for two augmentations.
    """

    def __init__(
        self,
        watched: Watched,
        options: Options,
        matrices: Matrices,
        statistics: Statistics,
        *,
        batch: int,
        todo: Tensor | None,
        mask: Tensor | None,
        factor: float,
        axis: int,
        rooms: dict[Any, Tensor] | None = None,
        views: int = 1,
    ) -> None:
        self._watched, self._options, self._statistics = watched, options, statistics
        self._batch, self._mask, self._axis, self._views = batch, mask, axis, views
        self._rows = BlockRows(options, matrices, todo=todo, mask=mask, rooms=rooms)
        self._scaled = Scaled(factor)
        self._lock = threading.Lock()
        self._logs: dict[str, Tensor] = {}
        self._forwards: list[tuple[str, Call, Tensor]] = []
        self._layouts: dict[int, Layout] = {}
        self._seen: dict[str, int] = {}
        self._gradients = 0
        self.scales: list[Scale | None] = []
        self._runs_again = False
        self._left: tuple[Any, ...] | None = None
        wants = set(options.log)
        self._needs_gradients = bool(wants & {"grad", "backward"})
        self.hooks = Hooks(
            watched, batch, self._forward if "forward" in wants else None, self._needs_gradients
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Gather what happens in a ``with``."""
        listener = Listener(self._backward_called, self._scaled.add, self._checkpointed)
        with self.hooks.installed(), told(listener):
            yield

    # -- backward passes --------------------------------------------------------------------------

    def _checkpointed(self) -> None:
        """A part of the forward pass will be run again, whenever the graph needs it."""
        self._runs_again = True

    def _backward_called(self, backward: Backward) -> Any:
        """``loss.backward()`` was called: gather, and do it."""
        if in_backward() or not self._is_ours(backward):
            return backward.run()
        self._check_kept()
        self._check_grads(backward)
        roots = _Roots(backward.losses, backward.grads)
        self._gather(roots, backward.run)
        parameter = next(iter(self._watched.parameters.values()))
        self._left = _trace(parameter)
        return None

    def _is_ours(self, backward: Backward) -> bool:
        """Whether gradients of watched parameters are wanted, and not those of inputs alone."""
        if not self._needs_gradients:
            return False
        if backward.inputs is None:
            return True
        watched = {id(each) for each in self._watched.parameters.values()}
        return any(id(each) in watched for each in backward.inputs)

    def _check_grads(self, backward: Backward) -> None:
        """What a loss is multiplied with by a gradient is in no graph, so how it joins is not."""
        if self._batch == 1 or self._declared() is not None:
            return
        for loss, grad in zip(backward.losses, backward.grads, strict=False):
            if grad is not None and loss.requires_grad and not bool((grad == 1).all()):
                raise CaptureError(
                    f"backward was called on a tensor of shape {tuple(loss.shape)} with a gradient "
                    "that is not all ones. What that multiplies the examples with is not a part "
                    "of the loss, so it cannot be seen whether it is a mean, or weights of their "
                    "own. Hint: call backward on a scalar, as losses.sum().backward(), "
                    "losses.mean().backward() or (losses * w).sum().backward(), which is read; or "
                    'say it by run.setup(reduction="mean"), or "sum".'
                )

    def _check_kept(self) -> None:
        """A second backward pass adds to the first, unless gradients were dropped in between."""
        parameter = next(iter(self._watched.parameters.values()))
        if self._left is not None and self._left != _trace(parameter):
            raise CaptureError(
                "Gradients were changed or set to zero between two backward passes of one batch, "
                "so it is not clear which of them counts. Hint: torch.autograd.grad(...) for a "
                "gradient that is only used on the way, as that of the inputs."
            )

    def backward(self, loss: Tensor) -> None:
        """Walk back from the loss only as far as is needed; parameters get no gradients."""
        self._gather(_Roots([loss], [None]), None)

    def _gather(self, roots: _Roots, run: Any) -> None:
        """Gather from one loss; ``run`` is the backward pass of the user."""
        said = (self._batch, self._axis, self._views, *self.hooks.calls, *self.hooks.axes)
        graph = graph_of(roots.nodes, said, self.hooks.edges, self._watched.numbers)
        plan = self._watched.plans.get(graph.structure)
        if plan is None and not self._is_seen(roots, graph, run):
            return
        self._rows.factor = self._scaled.factor_of(roots.nodes)
        if plan is None or not plan.holds_for(graph, self._batch, self._axis):
            self._prove(roots, graph)
            if run is not None:
                run()
            return
        scale, terms = self._scale(roots, plan)
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
                roots.walk(self._ends(plan, graph))
            else:
                run()

    def _scale(self, roots: _Roots, plan: Plan) -> tuple[Scale | None, list[Term]]:
        """The scale of all terms of the loss; None, and the terms, where they differ."""
        if plan.even and self._declared() is None:
            node = roots.nodes[0]
            if shape_of(node.next_functions[0])[0] == self._batch:
                found = even_scale(node, self._batch)
                if found is not None:
                    return found, []
        terms = self._terms(roots, known=True)
        return agreed(terms), terms

    def _is_seen(self, roots: _Roots, graph: Graph, run: Any) -> bool:
        """Whether all of a graph is there, and leads to watched parameters; the rest is done."""
        if graph.named("CheckpointFunction"):
            self._rows.factor = self._scaled.factor_of(roots.nodes)
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
        sums = ExampleSums(self._watched.parameters, self._batch)
        handles = self._use_hooks(plan.uses, graph, sums)

        def listen(call: Call, grad: Tensor) -> None:
            layout = plan.layouts.get(call.number)
            self._took(call, grad, layout, scale, plan.by_rule)

        try:
            with self.hooks.listening(listen):
                yield
        finally:
            for handle in handles:
                handle.remove()
        for block in self._watched.blocks:
            if block.name not in plan.by_rule and "grad" in self._options.log:
                matrix = summed_matrix(block, sums, self._watched.parameters)
                if matrix is not None:
                    self._rows.take(block, pair_of(matrix), scale)

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

    def _prove(self, roots: _Roots, graph: Graph) -> None:
        """Take the gradients of a structure that is new, and prove them."""
        self._refuse_norms(graph)
        with torch.no_grad():
            terms = self._terms(roots)
            if self._batch > 1 and self._declared() is None:
                check_weights(terms, self._batch)
            try:
                self._take_proven(roots, graph, terms)
            except SawlogError:
                raise
            except Exception as error:
                raise CaptureError(
                    "The backward pass of this program cannot be walked over for each example: "
                    f"{type(error).__name__}: {error}. Hint: watch fewer layers by names=."
                ) from error

    def _take_proven(self, roots: _Roots, graph: Graph, terms: list[Term]) -> None:
        passes = Passes(terms, roots.starts())
        self.scales.append(passes.scale)
        prover = Prover(self._watched, self._rows, graph, self._batch, self._axis)
        proof = prover.prove(passes, self.hooks)
        self._gradients += len(proof.calls) + 1
        for number, (call, grad) in proof.calls.items():
            self._took(call, grad, proof.layouts.get(number), passes.rest, frozenset())
        if "grad" in self._options.log:
            for block in self._watched.blocks:
                for pair in proof.pairs[block.name]:
                    self._rows.take(block, pair, passes.rest)
        # What was checkpointed can be read once in a pass, and its nodes not be called besides.
        if proof.plan is not None and not (self._runs_again and proof.plan.uses):
            every = self._watched_edges(proof.plan, graph)
            last = {id(edge) for edge in last_edges(roots.nodes, every)}
            ends = tuple(number for number, edge in enumerate(every) if id(edge) in last)
            plan = dataclasses.replace(proof.plan, ends=ends, even=self._is_even(terms, graph))
            self._watched.plans[graph.structure] = plan

    def _refuse_norms(self, graph: Graph) -> None:
        for node in graph.named("BatchNorm"):
            training = getattr(node, "_saved_training", getattr(node, "_saved_train", False))
            if training and self._batch > 1 and node._input_metadata[0].shape[0] != 1:
                raise ArgumentError(
                    "Something is normalised over the examples of the batch "
                    f"({node.name()} in train mode), so that they have no gradients of their own. "
                    "Hint: call `.eval()` on BatchNorm layers, or use GroupNorm."
                )
        for node in graph.named("EmbeddingBackward"):
            if self._batch > 1 and getattr(node, "_saved_scale_grad_by_freq", False):
                raise ArgumentError(
                    "The gradients of a table are divided by how often a word is in the batch "
                    "(scale_grad_by_freq=True), so that examples have no gradients of their own. "
                    "Hint: scale_grad_by_freq=False."
                )

    def _gather_unseen(self, roots: _Roots, run: Any) -> None:
        """Gather where a part of the graph is only made in the backward pass.

        That is so with reentrant checkpointing. Rows are compared with what is added to ``.grad``.
        """
        if run is None:
            raise CaptureError(
                "run.backward(loss) cannot walk through reentrant checkpointing. Hint: "
                "checkpoint(..., use_reentrant=False), or loss.backward()."
            )
        scale = agreed(self._terms(roots))
        if scale is None:
            raise CaptureError(
                "The terms of the loss are joined in different ways, and with reentrant "
                "checkpointing they cannot be told apart. Hint: use_reentrant=False."
            )
        before = {n: _copied(p.grad) for n, p in self._watched.parameters.items()}
        every = frozenset(block.name for block in self._watched.blocks)
        self.hooks.reentrant = True

        def listen(call: Call, grad: Tensor) -> None:
            layout = self._guessed(call.unit, tuple(grad.shape))
            self._took(call, grad, layout, scale, every)

        try:
            with self.hooks.listening(listen):
                run()
        finally:
            self.hooks.reentrant = False
        self._check_sums(before, scale)

    def _check_sums(self, before: Mapping[str, Tensor | None], scale: Scale) -> None:
        """Compare rows with what a backward pass added to the gradients of parameters."""
        if not self._rows.whole:
            return
        parameters = self._watched.parameters
        added = {name: _added(before[name], p.grad) for name, p in parameters.items()}
        for block in self._watched.blocks:
            want = projected_gradient(self._rows, block, added, parameters)
            got = self._rows.total(block, scale)
            dtype = parameters[block.name].dtype
            size = float(want.norm()) + float(got.norm())
            if float((got - want).norm()) > precision_of(dtype) * size:
                raise CaptureError(
                    f"The gradients of the examples for {block.name!r} do not add up to that of "
                    "the batch: it is used in a way that is not seen through reentrant "
                    "checkpointing. Hint: checkpoint(..., use_reentrant=False)."
                )

    # -- how the loss joins examples --------------------------------------------------------------

    def _terms(self, roots: _Roots, known: bool = False) -> list[Term]:
        if self._batch == 1:
            zero = torch.zeros((), dtype=torch.long)
            return [Term(edge, edge, (), zero, 1.0) for edge in roots.edges]
        examples = Examples(self._batch, self._axis, self._views)
        try:
            return terms_of(roots.edges, examples, self._declared(), known)
        except ArgumentError:
            self._check_sizes()
            raise

    def _is_even(self, terms: list[Term], graph: Graph) -> bool:
        """Whether the scale of the loss is told by the operation that joins the examples alone."""
        if self._batch == 1 or self._views != 1 or self._axis or len(terms) != 1:
            return False
        return is_even(terms[0], self._batch) and not graph.named("IndexBackward")

    def _check_sizes(self) -> None:
        """Say so where the number of ids is wrong."""
        for edge, name in zip(self.hooks.edges, self.hooks.calls, strict=False):
            shape = edge.node._input_metadata[edge.output_nr].shape
            size = int(shape[self._axis if len(shape) > self._axis + 1 else 0]) if shape else 0
            if size != 1 and size % self._batch:
                raise CaptureError(
                    f"The layer {name!r} got {size} examples, and data_id names {self._batch}. "
                    "Hint: one id for each example; watch(model, batch_axis=1) where the sequence "
                    "comes first; where the model is called on parts of the batch, torch.cat of "
                    "the outputs before the loss."
                ) from None

    def _declared(self) -> Scale | None:
        """The scale, where an option says it."""
        how = self._options.reduction
        if how in ("sum", "mean"):
            return 1.0 if how == "sum" else float(self._batch)
        if how == "tokens":
            if self._mask is None:
                raise ArgumentError(
                    'reduction="tokens" needs to know which positions count. Hint: '
                    "run(data_id=ids, mask=attention_mask)."
                )
            own = self._mask.reshape(self._batch, -1).sum(1).to(torch.float64)
            return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))
        return None

    # -- what the hooks bring ---------------------------------------------------------------------

    def _name(self, kind: str, unit: Unit) -> str:
        """The name of a log; of a module that is called again, with a number."""
        name = str(LogName(kind, unit.name))
        with self._lock:
            count = self._seen[name] = self._seen.get(name, 0) + 1
        return str(LogName(kind, unit.name, count))

    def _forward(self, call: Call, output: Tensor) -> None:
        tensor = output
        if self._options.forward == "input":
            found = first_tensor((*call.args, call.kwargs))
            if found is None:
                raise CaptureError(f"The layer {call.unit.name!r} was called without a tensor.")
            tensor = found
        self._forwards.append((self._name("forward", call.unit), call, tensor.clone()))

    def _took(
        self, call: Call, grad: Tensor, layout: Layout | None, scale: Scale, by_rule: frozenset[str]
    ) -> None:
        """Take the gradient of the output of a call."""
        self._gradients += 1
        if layout is not None:
            self._layouts[call.number] = layout
        if "backward" in self._options.log:
            by = scale / self._rows.factor
            self._keep(call, self._name("backward", call.unit), grad, layout, by)
        shares = [share for share in call.unit.shares if share.block.name in by_rule]
        if "grad" in self._options.log and shares:
            assert layout is not None
            pairs = pairs_of(call, grad, self._batch, layout)
            for share in shares:
                self._rows.take(share.block, share.of(pairs[share.part.name]), scale)

    def _keep(
        self, call: Call, name: str, tensor: Tensor, layout: Layout | None, scale: Scale = 1.0
    ) -> None:
        """Keep a log of forward or backward, with the examples in front."""
        if layout is None:
            raise CaptureError(
                f"It cannot be told which of a tensor of shape {tuple(tensor.shape)} at the layer "
                f"{call.unit.name!r} belongs to which of {self._batch} examples, so {name!r} "
                "cannot be logged. Probably it is computed once for all examples, as position "
                "embeddings are, so that what comes back is the sum over them. Hint: leave this "
                f'layer out, as by names=lambda name: not name.startswith("{call.unit.name}"), or '
                'log="grad", which has its gradients for each example.'
            )
        each = tensor.shape[layout.axis] // self._batch
        tensor = layout.split(tensor, self._batch)
        if each == 1:
            tensor = tensor.squeeze(layout.axis + 1)
        elif layout.axis:
            tensor = tensor.movedim(layout.axis + 1, 1)
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.float32)
        if not isinstance(scale, float):
            scale = scale.to(tensor).reshape(-1, *(1,) * (tensor.ndim - 1))
        with self._lock:
            self._logs[name] = self._rows.chosen(tensor * scale)

    def _guessed(self, unit: Unit, shape: tuple[int, ...], strict: bool = False) -> Layout | None:
        """The layout of a tensor that no backward pass told of."""
        first = getattr(unit.module, "batch_first", None)
        axis = self._axis if first is None else int(not first)
        free = isinstance(unit.rule, (GeneralRule, FunctionRule))  # or the features are gone
        if len(shape) == 2 and not (free and shape[1] == self._batch):
            axis = 0
        axis = axis if axis < len(shape) else 0
        if not shape or shape[axis] % self._batch or (strict and shape[axis] != self._batch):
            return None
        return Layout(axis, self._axis == 1)

    def _keep_forwards(self) -> None:
        """Lay out what was kept of forward passes, now that it is known how the examples lie."""
        told = any(
            self._guessed(call.unit, tuple(tensor.shape), strict=True) is not None
            for _, call, tensor in self._forwards
        )
        for name, call, tensor in self._forwards:
            layout = self._layouts.get(call.number)
            if layout is not None and not _has(layout, tensor, self._batch):
                layout = None
            if layout is None:
                layout = self._guessed(call.unit, tuple(tensor.shape), strict=not told)
            if layout is None and tensor.dim() and len(tensor) == 1:  # the same for all examples
                tensor, layout = tensor.expand(self._batch, *tensor.shape[1:]), Layout(0)
            self._keep(call, name, tensor, layout)
        self._forwards.clear()

    # -- the end of the batch ---------------------------------------------------------------------

    def rows(self, examples: int) -> dict[str, Any]:
        """All logs of the batch by name, for the ``examples`` that were to be logged.

        Raises:
            CaptureError: no gradient was seen at all.
        """
        if self._needs_gradients and not self._gradients:
            raise CaptureError(
                "No gradient of a watched layer was seen in this batch. Hint: run the forward "
                "pass and loss.backward() inside of `with run(data_id=ids):`, not under "
                "torch.no_grad()."
            )
        self._keep_forwards()
        logs: dict[str, Any] = dict(self._logs)
        if "grad" in self._options.log and self._rows.needed:
            for block in self._watched.blocks:
                logs[str(LogName("grad", block.name))] = self._rows.rows(block, examples)
        return logs

    def add_statistics(self, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics."""
        self._rows.add_statistics(self._statistics, logs, self._watched.blocks, examples)

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """What of the batch goes into the store."""
        columns: dict[str, Any] = {}
        for name, rows in logs.items():
            if name.partition("/")[0] not in self._options.saved:
                continue
            whole = isinstance(rows, Outer)
            columns.update({name: rows} if whole else encode(name, rows, self._options.dtype))
        return columns


class _Roots:
    """The losses that a backward pass starts from, with their gradients."""

    def __init__(self, losses: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        both = [(loss, grad) for loss, grad in zip(losses, grads, strict=True)]
        self._both = [(loss, grad) for loss, grad in both if loss.grad_fn is not None]
        self.edges: list[Edge] = [root_of(loss) for loss, _ in self._both]
        self.nodes = [node for node, _ in self.edges]

    def starts(self) -> dict[Edge, Tensor]:
        """The gradient of each loss."""
        found: dict[Edge, Tensor] = {}
        for edge, (loss, grad) in zip(self.edges, self._both, strict=True):
            own = torch.ones_like(loss) if grad is None else grad.detach()
            found[edge] = found[edge] + own if edge in found else own
        return found

    def walk(self, edges: Sequence[GradientEdge]) -> None:
        """Walk back to some edges; the graph is freed."""
        losses = [loss for loss, _ in self._both]
        grads = [grad for _, grad in self._both]
        torch.autograd.grad(losses, list(edges), grads, allow_unused=True)


def _has(layout: Layout, tensor: Tensor, batch: int) -> bool:
    return tensor.dim() > layout.axis and tensor.shape[layout.axis] % batch == 0


def _trace(parameter: Tensor) -> tuple[Any, ...]:
    """Tells whether the gradient of a parameter is still what it was."""
    grad = parameter.grad
    return (None,) if grad is None else (id(grad), grad._version)


def _added(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    return after if before is None or after is None else after - before


def _copied(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.detach().clone()
