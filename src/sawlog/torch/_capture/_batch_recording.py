"""Record the operations of a batch, and search them for interactions of examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._autograd_graph import Graph
from sawlog.torch._hooks._hooks import Hooks
from sawlog.torch._loss._roots import Roots
from sawlog.torch._model._watched import Watched
from sawlog.torch._proof._passes import Passes
from sawlog.torch._proof._prover import Proof


class BatchRecording:
    """What is recorded of one batch.

    Args:
        watched: the layers.
        hooks: on the modules.
        batch: the batch.
        gradients: whether gradients are captured.
        moments: whether second moments are, which depend on the uses of a weight; those of one
            example are recorded too, to know what is computed once for all.
    """

    def __init__(
        self, watched: Watched, hooks: Hooks, batch: BatchSpec, gradients: bool, moments: bool
    ) -> None:
        self._watched, self._hooks, self._batch = watched, hooks, batch
        self._checks = watched.interactions
        self.checked = gradients and batch.size > 1
        """Whether interactions are searched."""
        self._records = gradients and (batch.size > 1 or moments)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record the operations inside the ``with``, if that is due."""
        regions = self._watched.regions
        compiled = self._hooks.regions is not None and regions is not None and regions.have_run
        if not self._records or compiled:
            yield
            return
        size = (self._batch.size, self._batch.views)
        with self._checks.recording(size) as recorder, self._hooks.recording(recorder):
            yield

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Record nothing inside the ``with``."""
        recorder = self._hooks.recorder
        return contextlib.nullcontext() if recorder is None else recorder.paused()

    def skip(self) -> None:
        """Record nothing, and search nothing."""
        self.checked = self._records = False

    def is_due(self, graph: Graph, roots: Roots) -> bool:
        """Return whether the graph of a loss is to be searched now."""
        return self.checked and self._checks.is_due(graph.structure, self._hooks.recorder, roots)

    def check(self, graph: Graph, roots: Roots, passes: Passes, proof: Proof) -> None:
        """Search the graph of a loss, if it was recorded and not searched yet.

        Raises:
            MixedExamplesError: examples depend on each other.
        """
        recorder = self._hooks.recorder
        if not self.checked or recorder is None or self._checks.is_done(graph.structure):
            return
        self._checks.check(
            graph.structure,
            recorder,
            roots.losses,
            passes.terms,
            proof.outputs,
            self._batch.size,
            {meta.dtype for node in graph.nodes for meta in node._input_metadata},
            proof.alive,
            self._watched.tensors,
            self._batch.axis,
        )

    def was_refused(self) -> None:
        """Record the next batch, as it is not known where the weights of this one come from."""
        self._checks.due = self._checks.due or self._hooks.recorder is None
