"""``Backend``: everything that a capture needs of a framework.

:class:`sawlog.capture.CaptureRun` knows options, ids, passes, stores and statistics, and no
framework. A framework's run creates a backend for the model that it watches; ``sawlog.torch`` has
``TorchBackend``. One batch goes through the protocol like this::

    capturer = backend.capturer(options, blocks, matrices, reuse_memory=True)   # once for a pass
    batch = capturer.batch(BatchRequest(size=8))                                # for each batch
    with batch.watching():
        ...                             # the user's forward and backward pass
    logs = batch.rows(8)                # {"grad/fc.weight": [8, rows, cols], ...}
    batch.add_statistics(staged, logs, 8)
    writer.append(ids, batch.columns(logs))

Arrays may be of any library that the array API standard describes. Rows that the store multiplies
itself may be :class:`sawlog.store.DeferredRows`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sawlog.capture._check import Check
from sawlog.capture._nonfinite import NonFiniteRows
from sawlog.capture._pass_matrices import PassMatrices
from sawlog.run_files._blocks import Block
from sawlog.run_files._options import Options
from sawlog.run_files._provenance import Provenance
from sawlog.run_files._statistics import RunStatistics, Staged

if TYPE_CHECKING:
    from sawlog.capture._run import CaptureRun

Step = Callable[[Any, Any], Any]
CutOne = Callable[[Any, int], Any] | None


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """A batch to capture, as the user described it.

    Args:
        size: the number of examples.
        todo: which of them to log, a boolean mask ``[batch]``; None is all.
        mask: which positions of each example count, ``[batch, positions]``, as the user passed it.
        scaler: the loss scaler of the framework, as the user passed it.
        views: how many times the batch was concatenated with itself.
    """

    size: int
    todo: np.ndarray | None = None
    mask: Any = None
    scaler: Any = None
    views: int = 1


class ActiveBatch(Protocol):
    """One batch while it is captured, and its logs afterwards."""

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which the model's computations are captured."""

    def rows(self, examples: int) -> dict[str, Any]:
        """Return all logs by name, each ``[examples, ...]``, for the examples to log.

        Raises:
            CaptureError: no gradient was seen, or the examples cannot be separated.
        """

    def add_statistics(self, sums: RunStatistics, logs: Mapping[str, Any], examples: int) -> None:
        """Add the batch to the statistics that the options select."""

    def columns(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the logs to store, encoded in the dtype of the options."""


class Capturer(Protocol):
    """Captures the batches of one pass, all with the same options."""

    def batch(self, request: BatchRequest) -> ActiveBatch:
        """Prepare the capture of one batch.

        Raises:
            ArgumentError: the mask does not fit the batch.
        """


class ProcessGroup(Protocol):
    """The processes of a distributed job, and the key-value store that they share."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def claim(self, key: str) -> bool:
        """Return whether this process is the first of the job to claim a key."""

    def put(self, key: str, value: str) -> None:
        """Set the value of a key for all processes.

        Raises:
            ProcessLostError: the process that keeps the values is gone.
        """

    def get(self, key: str) -> str | None:
        """Return the value of a key; None if no process has set it yet.

        Raises:
            ProcessLostError: the process that keeps the values is gone.
        """


class Backend(Protocol):
    """A watched model of one framework."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The matrices of parameters that are watched, uncompressed."""

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The names of parameters that are not watched, and why."""

    def provenance(self, projection: str = "") -> Provenance:
        """Return a fingerprint of all weights of the model as they are now."""

    def changed_weights(self) -> Sequence[str]:
        """Return the names of tensors that changed since :meth:`provenance` was called.

        It is called for each batch, so it must be fast.
        """

    def capturer(
        self, options: Options, blocks: Sequence[Block], matrices: PassMatrices, reuse_memory: bool
    ) -> Capturer:
        """Return what captures batches.

        Args:
            options: what to log.
            blocks: the watched blocks with their ranks.
            matrices: the projection and eigenbasis of each block.
            reuse_memory: whether the rows of a batch may be overwritten by the next.
        """

    def nonfinite_rows(self, logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
        """Return which examples are not finite once stored in a dtype; None if all are."""

    def nonfinite_sums(self, staged: Staged) -> Sequence[str]:
        """Return the names of statistics that a batch would make infinite or NaN."""

    def sampled_batches(self, loader: Iterable[Any]) -> Iterator[tuple[np.ndarray, Any]] | None:
        """Return batches with the positions of their examples in the dataset of a loader.

        None means that the loader yields its data in order, or is not of this framework.

        Raises:
            ArgumentError: the loader shuffles in a way that cannot be followed.
        """

    def gathered(self, *, for_pass: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process has all parameters of the model as a whole.

        Where parameters are split over the processes of a job, all processes enter it together.

        Args:
            for_pass: whether batches follow that not all of the processes have; inside, no
                computation of the model may need the other processes.
        """

    def run_step(self, active: ActiveBatch, step: Step, batch: Any, size: int) -> None:
        """Call ``step(model, batch)`` and differentiate the loss, if gradients are logged.

        Raises:
            ArgumentError: the step returned neither a loss nor one loss for each example.
        """

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
