"""Capture through reentrant checkpointing, which builds parts of the graph in the backward pass.

The graph cannot be read in advance, so layouts are guessed from shapes, and proven in every batch.
The backward pass runs once more than usual, with a factor for each example. The gradient of every
layer output must change by exactly these factors, example by example, and rows that are multiplied
by the factors and summed must equal the gradients of the parameters in that pass. Between the two
passes only two numbers are kept for each example and layer call, so checkpointing still saves
memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._capture._batch_logs import BatchLogs
from sawlog.torch._graph._autograd_graph import Graph
from sawlog.torch._graph._example_layout import Codes, ExampleLayout, codes
from sawlog.torch._graph._mixing import refuse_mixing
from sawlog.torch._hooks._grad_state import LeafGradients, added, copied
from sawlog.torch._hooks._hooks import Hooks, LayerCall
from sawlog.torch._loss._loss_reader import LossReader
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._terms import agreed
from sawlog.torch._model._watched import Watched
from sawlog.torch._processes import process_group
from sawlog.torch._proof._block_sums import BlockSums
from sawlog.torch._proof._gradient_sketch import CallSketch, GradientSketch, sketch
from sawlog.torch._proof._passes import Passes
from sawlog.torch._rows._nonfinite import check_finite

_HINT = "Hint: checkpoint(..., use_reentrant=False)."
_OWN_HINT = (
    "Hint: leave that parameter or layer out by names=, or call torch.autograd.grad in the "
    "function of the program that calls backward() inside of its own backward pass."
)

Grads = Mapping[str, Tensor | None]


class NestedBackward(CaptureError):
    """A backward pass began inside of another one, which was not expected."""


class ReentrantPass:
    """One backward pass through reentrant checkpointing.

    Args:
        watched: the layers.
        hooks: on the modules.
        loss: reads the scale of the examples.
        batch: the batch.
        logs: receives the gradients.
    """

    def __init__(
        self, watched: Watched, hooks: Hooks, loss: LossReader, batch: BatchSpec, logs: BatchLogs
    ) -> None:
        self._watched, self._hooks, self._loss = watched, hooks, loss
        self._batch, self._logs = batch, logs
        self._leaves: LeafGradients | None = None

    def enter(self, outputs: Sequence[Tensor]) -> None:
        """Prepare a backward pass inside of another one, that of a graph with these outputs.

        Raises:
            NestedBackward: it would add to gradients while others are taken.
        """
        if not self._hooks.reentrant:
            raise NestedBackward(
                "A function of this program runs a backward pass inside of its own one, as "
                "reversible layers and checkpointing do, so a part of the graph cannot be seen. "
                "Hint: call torch.autograd.grad there, in place of backward(), or use "
                "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
            )
        if self._leaves is not None:
            self._leaves.set_aside([each.grad_fn for each in outputs])

    def capture(self, roots: Roots, graph: Graph, run: Callable[[], Any] | None) -> None:
        """Run the backward pass of the user, and capture it.

        Args:
            roots: the loss.
            graph: the visible part of its graph.
            run: the backward pass of the user; None if there is only ``run.backward(loss)``.

        Raises:
            CaptureError: it cannot be captured, or the proof fails.
        """
        try:
            self._capture(roots, graph, run)
        except CaptureError as error:
            if graph.named("CheckpointFunction"):
                raise
            said = str(error).replace(
                "reentrant checkpointing", "a backward pass inside of another"
            )
            raise CaptureError(said.replace(_HINT, _OWN_HINT)) from error

    def _capture(self, roots: Roots, graph: Graph, run: Callable[[], Any] | None) -> None:
        if run is None:
            raise CaptureError(
                "run.backward(loss) cannot run through reentrant checkpointing. Hint: "
                "checkpoint(..., use_reentrant=False), or loss.backward()."
            )
        if self._logs.correction is not None:
            raise CaptureError(
                "Gradients cannot be corrected by the state of the optimizer through reentrant "
                f"checkpointing. {_HINT}"
            )
        refuse_mixing(graph.nodes, self._batch.size)
        with torch.no_grad():
            terms = self._loss.terms(roots)
            self._loss.check_weights(terms)
        scale = agreed(terms)
        if scale is None:
            raise CaptureError(
                "The terms of the loss are joined in different ways, and reentrant "
                f"checkpointing hides which gradient is of which term. {_HINT}"
            )
        every = self._codes(graph)
        with torch.no_grad():
            passes = Passes(terms, roots.starts())
        coded = [self._coded_pass(passes, graph, factors) for factors in every.factors]
        proof = GradientSketch(self._batch.size, every, [each for each, _ in coded])
        sums = BlockSums(self._watched, self._logs.row_builder, every.factors)
        before = {name: copied(each.grad) for name, each in self._watched.parameters.items()}
        by_rule = frozenset(block.name for block in self._watched.blocks)

        def listen(call: LayerCall, grad: Tensor) -> None:
            layout = self._layout(call, grad)
            proof.compare(call, grad, layout)
            sums.add_dtype(call, grad.dtype)
            self._logs.add_call(call, grad, layout, scale, by_rule)

        with self._recomputing(listen), self._logs.observed(sums.add):
            run()
        if "grad" in self._logs.wants:
            changes = {n: added(before[n], p.grad) for n, p in self._watched.parameters.items()}
            sums.check([changes, *(totals for _, totals in coded)])

    def _codes(self, graph: Graph) -> Codes:
        """Return a factor for each example; no passes for a batch of one."""
        dtypes = {meta.dtype for node in graph.nodes for meta in node._input_metadata}
        dtypes |= self._hooks.dtypes | {each.dtype for each in self._watched.parameters.values()}
        found = codes(self._batch.size, dtypes)
        return found if self._batch.size > 1 else Codes((), True, found.tolerance, found.floor)

    def _layout(self, call: LayerCall, grad: Tensor) -> ExampleLayout | None:
        layout = self._logs.tensors.guessed(call.unit, tuple(grad.shape))
        if layout is None and "grad" in self._logs.wants and call.unit.shares:
            raise CaptureError(
                f"The layer {call.unit.name!r} returned a tensor of shape {tuple(grad.shape)}, "
                f"which has no axis of {self._batch.size} examples. Probably it is computed once "
                f"for all examples, which reentrant checkpointing hides. {_HINT}"
            )
        return layout

    def _coded_pass(
        self, passes: Passes, graph: Graph, factors: Tensor
    ) -> tuple[list[CallSketch], Grads]:
        """Run the backward pass with a factor for each example, and undo its effects."""
        if process_group() is not None:
            raise CaptureError(
                "Reentrant checkpointing in a torch.distributed job cannot be captured, because "
                f"its proof would run the hooks that average gradients twice. {_HINT}"
            )
        size = self._batch.size
        sketches: list[CallSketch] = []

        def listen(call: LayerCall, grad: Tensor) -> None:
            layout = self._layout(call, grad)
            sketches.append(sketch(call, grad, layout, size, len(sketches)))

        self._leaves = leaves = LeafGradients()
        try:
            with self._recomputing(listen), torch.random.fork_rng(devices=[]):
                leaves.set_aside(graph.nodes[: graph.roots])
                passes.accumulate(factors)
            if leaves.graphs < 2:
                raise CaptureError(
                    f"The checkpointed part of the graph ran in another thread. {_HINT}"
                )
            totals = {name: each.grad for name, each in self._watched.parameters.items()}
        finally:
            leaves.restore()
            self._leaves = None
        check_finite(totals)
        return sketches, totals

    @contextlib.contextmanager
    def _recomputing(self, listen: Callable[[LayerCall, Tensor], None]) -> Iterator[None]:
        """Capture modules that run inside the backward pass, too."""
        self._hooks.reentrant = True
        try:
            with self._hooks.listening(listen):
                yield
        finally:
            self._hooks.reentrant = False
