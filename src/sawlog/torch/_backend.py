"""``TorchBackend``: a watched ``torch.nn.Module``, as :class:`sawlog.capture.Backend` needs it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sawlog.capture._backend import ActiveBatch, BatchRequest, CutOne, Step
from sawlog.capture._check import Check
from sawlog.capture._nonfinite import NonFiniteRows
from sawlog.capture._pass_matrices import PassMatrices
from sawlog.capture._run import CaptureRun
from sawlog.errors import ArgumentError
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import Provenance
from sawlog.run_files._statistics import Staged
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._capture._batch_capture import BatchCapture
from sawlog.torch._capture._batch_logs import PairMap
from sawlog.torch._check._check_batch import check_batch
from sawlog.torch._check._plain_gradients import loss_of
from sawlog.torch._compiled._regions import CompiledRegions
from sawlog.torch._model._fingerprint import Fingerprint
from sawlog.torch._model._names import bare, compiled_parts
from sawlog.torch._model._places import ModelPlaces
from sawlog.torch._model._search import FROZEN, Names, find_watched
from sawlog.torch._model._sharded import ShardedModel
from sawlog.torch._model._sharded_fingerprint import ShardedFingerprint
from sawlog.torch._model._watched import Watched
from sawlog.torch._rows._batch_statistics import BatchStatistics
from sawlog.torch._rows._nonfinite import nonfinite_rows, nonfinite_sums
from sawlog.torch._rows._projectors import Projectors
from sawlog.torch._rows._row_builder import RowBuilder
from sawlog.torch._sampled_batches import sampled_batches


class TorchBackend:
    """Hooks, weights and loaders of one PyTorch model.

    Args:
        model: the model; it is not changed.
        names: patterns of the names of modules or parameters, or a function.
        types: types of modules.
        uncovered: what to do about parameters that no layer rule covers.
        axis: the axis of the examples.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Names = None,
        types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
        uncovered: str = "func",
        axis: int = 0,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ArgumentError(
                "A model of torch.jit has no modules whose calls can be seen. Hint: watch the "
                "model before torch.jit.script or torch.jit.trace."
            )
        if isinstance(model, nn.parallel.DistributedDataParallel) and model.static_graph:
            raise ArgumentError(
                "DistributedDataParallel(static_graph=True) counts the backward passes of its "
                "first step, and a proof runs several. Hint: static_graph=False; in a Trainer, "
                "TrainingArguments(ddp_static_graph=False)."
            )
        self.model = bare(model) if isinstance(model, nn.Module) else model
        self._sharded = ShardedModel(model) if isinstance(model, nn.Module) else None
        self.watched = find_watched(self.model, names, types, uncovered)
        if not self._sharded:
            self.watched = dataclasses.replace(
                self.watched, regions=compiled_regions(model, self.watched)
            )
        self.axis = axis
        frozen = [name for name, why in self.watched.skipped if why == FROZEN]
        self._places = ModelPlaces(self.model, self.watched.parameters, frozen)
        self._fingerprint = (ShardedFingerprint if self._sharded else Fingerprint)(self.model)
        self.correction: PairMap | None = None
        """Applied to the gradients of each block before they are projected."""
        averaged = isinstance(model, nn.parallel.DistributedDataParallel)
        # A step is called with the model as given, but not with what averages gradients.
        self.step_model = self.model if averaged else model

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The matrices of parameters that are watched, uncompressed."""
        return self.watched.blocks

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The names of parameters that are not watched, and why."""
        return self.watched.skipped

    @property
    def parameter_count(self) -> int:
        """How many parameters the model has, watched or not."""
        return sum(each.numel() for each in self.model.parameters())

    def provenance(self, projection: str = "") -> Provenance:
        """Return a fingerprint of all weights of the model as they are now."""
        return self._fingerprint.now(projection)

    def changed_weights(self) -> Sequence[str]:
        """Return the names of tensors that changed since :meth:`provenance` was called."""
        return self._fingerprint.changed()

    def capturer(
        self, options: Options, blocks: Sequence[Block], matrices: PassMatrices, reuse_memory: bool
    ) -> TorchCapturer:
        """Return what captures the batches of a pass."""
        watched = self.watched.with_blocks(blocks)
        projectors = Projectors(matrices.projections, matrices.bases)
        memory: dict[Any, Tensor] | None = {} if reuse_memory else None
        return TorchCapturer(
            watched, options, projectors, self.axis, memory, self._places, lambda: self.correction
        )

    def nonfinite_rows(self, logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
        """Return which examples are not finite once stored in a dtype; None if all are."""
        return nonfinite_rows(logs, dtype)

    def nonfinite_sums(self, staged: Staged) -> Sequence[str]:
        """Return the names of statistics that a batch would make infinite or NaN."""
        return nonfinite_sums(staged)

    def sampled_batches(self, loader: Iterable[Any]) -> Iterator[tuple[np.ndarray, Any]] | None:
        """Return batches with the positions of their examples; None if a loader keeps the order."""
        return sampled_batches(loader)

    @contextlib.contextmanager
    def gathered(self, *, for_pass: bool = False) -> Iterator[None]:
        """Keep all parameters whole inside the ``with``, where processes have parts of them."""
        if not self._sharded:
            yield
            return
        if for_pass:
            self._fingerprint.now()  # needs all processes, and is remembered
        with self._sharded.whole(), self._sharded.reducing_once():
            yield

    def run_step(self, active: ActiveBatch, step: Step, batch: Any, size: int) -> None:
        """Call ``step(model, batch)`` and differentiate the loss, if gradients are logged."""
        assert isinstance(active, BatchCapture)
        active.compute_logs_only()
        value = step(self.step_model, batch)
        if active.needs_gradients:
            loss, each = loss_of(value, size)
            if each is not None:
                active.declare_sum()
            active.backward(loss)

    def check(
        self,
        run: CaptureRun,
        step: Step,
        batch: Any,
        *,
        mask: Any,
        examples: int,
        one: CutOne,
        tolerance: float | None,
    ) -> Check:
        """Compare what is captured of a batch with its examples run alone."""
        with self.gathered():
            return check_batch(self, run, step, batch, mask, examples, one, tolerance)


def compiled_regions(model: nn.Module, watched: Watched) -> CompiledRegions | None:
    """Return the modules that stay compiled; None if ``torch.compile`` was not called."""
    if not compiled_parts(model):
        return None
    units = [unit.module for unit in watched.units]
    return CompiledRegions(model, units, [norm for _, norm in watched.norms])


class TorchCapturer:
    """Captures the batches of one pass.

    Args:
        watched: the layers.
        options: what to log.
        projectors: the matrices of the blocks.
        axis: the axis of the examples.
        memory: buffers that batches share; None if rows must stay valid.
        places: where the model has what is watched.
        correction: returns what is applied to gradients before they are projected.
    """

    def __init__(
        self,
        watched: Watched,
        options: Options,
        projectors: Projectors,
        axis: int,
        memory: dict[Any, Tensor] | None,
        places: ModelPlaces,
        correction: Callable[[], PairMap | None] = lambda: None,
    ) -> None:
        self._watched, self._options, self.projectors = watched, options, projectors
        self._axis, self._memory, self._places = axis, memory, places
        self._correction = correction

    def batch(self, request: BatchRequest) -> BatchCapture:
        """Prepare the capture of one batch.

        Raises:
            CaptureError: the model has other modules or parameters than when it was watched.
        """
        self._places.check()
        spec = BatchSpec(
            size=request.size,
            todo=None if request.todo is None else torch.from_numpy(request.todo),
            mask=_mask(request.mask, request.size),
            factor=1.0 if request.scaler is None else float(request.scaler.get_scale()),
            axis=self._axis,
            views=request.views,
        )
        rows = RowBuilder(self._options, self.projectors, spec, self._memory)
        statistics = BatchStatistics(self._options, self.projectors, spec)
        capture = BatchCapture(self._watched, self._options, spec, rows, statistics)
        capture.correct(self._correction())
        return capture


def _mask(mask: Any, batch: int) -> Tensor | None:
    if mask is None:
        return None
    mask = torch.as_tensor(mask)
    if mask.ndim != 2 or mask.shape[0] != batch:
        raise ArgumentError(
            f"`mask` must have the shape [batch, positions], here [{batch}, ...]; got "
            f"{list(mask.shape)}."
        )
    return mask.to(torch.bool)
