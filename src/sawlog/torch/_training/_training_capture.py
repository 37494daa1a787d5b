"""``TrainingCapture``: the gradients that training computes, with steps and learning rates."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn

from sawlog import store
from sawlog._arrays import to_numpy
from sawlog._lifecycle import CloseOnExit, close_at_exit
from sawlog._paths import absolute
from sawlog._validate import refuse
from sawlog.capture import data_ids
from sawlog.errors import ArgumentError
from sawlog.run_files._options import Options, read
from sawlog.torch._backend import TorchBackend
from sawlog.torch._capture._batch_capture import BatchCapture
from sawlog.torch._run import Run
from sawlog.torch._training._averaged_gradients import averaging_divisor
from sawlog.torch._training._correction import Correction
from sawlog.torch._training._learning_rates import LearningRates

STEPS = "steps"

Steps = int | Collection[int] | Callable[[int], bool] | None


class TrainingCapture(CloseOnExit):
    """Logs the gradient of each example of the batches that a model is trained on.

    Nothing is computed twice: gradients are taken from the backward pass of training. The rows of
    each epoch are a run of their own, ``root/project/epoch-0`` and so on, so an example can be in
    each of them. Beside them, the step, the learning rate and the share of each example in the
    gradient of its step are stored. :func:`sawlog.influence.training_influence` reads them.

    Args:
        model: the model, as it is trained: where processes average gradients, that which
            ``DistributedDataParallel`` or ``accelerator.prepare`` returned.
        project: the name of the capture, a folder in ``root``.
        root: the folder of all runs.
        config: options as :meth:`sawlog.torch.Run.setup` takes them; statistics are not possible
            while the weights change.
        steps: at which steps to log: every n-th, a collection of steps, or a function of a step;
            None is all of them.
        optimizer: needed for learning rates, and for ``correct``.
        correct: whether gradients are multiplied by what the optimizer multiplies them with: one
            over the root of Adam's second moments, as they are before the step. The first step,
            before which there are none, is not logged.
        names, types, uncovered: as for :meth:`sawlog.torch.Run.watch`.
        exists: what to do about an existing capture: ``"append"``, ``"replace"`` or ``"error"``.

    >>> import tempfile, torch, sawlog
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> capture = TrainingCapture(model, "example", root=tempfile.mkdtemp(), optimizer=optimizer)
    >>> for step, ids in enumerate(torch.arange(6).split(2)):
    ...     with capture(ids, step=step):
    ...         model(torch.ones(2, 3)).square().mean().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> capture.close()
    >>> sawlog.store.open(capture.path / "epoch-0" / "steps").gather([3])["learning_rate"]
    array([0.1])
    """

    def __init__(
        self,
        model: nn.Module,
        project: str,
        *,
        root: str | os.PathLike[str] = "sawlog",
        config: Mapping[str, Any] | str | os.PathLike[str] | Options | None = None,
        steps: Steps = None,
        optimizer: Any = None,
        correct: bool = False,
        names: Any = None,
        types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
        uncovered: str = "func",
        exists: str = "append",
    ) -> None:
        self.path: Path = absolute(root) / project
        self._options = _training_options(config)
        self._backend = TorchBackend(model, names, types, uncovered)
        self._model = model
        self._is_due = _chosen(steps)
        self._exists, self._rates = (
            exists,
            LearningRates(optimizer, self._backend.watched.parameters),
        )
        self._correction: Correction | None = None
        if correct:
            if optimizer is None:
                raise ArgumentError("correct=True needs the optimizer. Hint: optimizer=optimizer.")
            self._correction = Correction(optimizer, self._backend.watched.parameters)
        self._epoch: int | None = None
        self._run: Run | None = None
        self._writer: store.Writer | None = None
        self._last = -1
        self.examples = 0
        """The number of examples that were logged."""
        self._cancel_exit = close_at_exit(self)

    def __repr__(self) -> str:
        return f"TrainingCapture({str(self.path)!r})"

    @contextlib.contextmanager
    def __call__(
        self,
        data_id: Any,
        *,
        step: int,
        epoch: int = 0,
        learning_rate: float | None = None,
        mask: Any = None,
    ) -> Iterator[Self]:
        """Log the batch whose forward and backward pass run inside the ``with``.

        Args:
            data_id: one id for each example, or a function that returns them, which is called only
                if the step is logged.
            step: the number of the step; micro-batches of one step have the same.
            epoch: the number of the epoch.
            learning_rate: that of the step; by default the optimizer's. Where watched parameters
                have different ones, none is stored, with a warning.
            mask: as for ``run(data_id, mask=...)``.
        """
        if not self._is_due(step) or not self._corrected(step):
            yield self
            return
        ids = data_ids(data_id() if callable(data_id) else data_id, once=False)
        run = self._of_epoch(epoch)
        own = run._current_pass().todo(ids)
        if own.sum() < len(ids):
            self._warn_twice(ids, own, epoch)
        if not own.any():
            with run(ids, mask=mask):  # nothing is logged; processes gather split parameters
                yield self
            return
        with self._rates.watching(), run(ids, mask=mask):
            active = run._batch
            assert isinstance(active, BatchCapture)
            active.refuse_quotients()
            yield self
            rate = self._rates.now() if learning_rate is None else float(learning_rate)
        assert self._writer is not None
        size = int(own.sum())
        self._writer.append(
            ids[own],
            {
                "step": np.full(size, step, np.int64),
                "learning_rate": np.full(size, rate, np.float64),
                "share": _of_all(ids, self._share(active, len(ids)))[own],
            },
        )
        self.examples += size

    @property
    def active(self) -> bool:
        """Whether a batch is being logged."""
        return self._run is not None and self._run._batch is not None

    def declare_loss(self, loss: Tensor) -> Tensor:
        """Say which tensor is the loss; see :meth:`sawlog.torch.Run.declare_loss`."""
        return loss if self._run is None else self._run.declare_loss(loss)

    def declare_items(self, counts: Any, total: Any = None, times: float = 1.0) -> None:
        """Say what the loss counts; see :meth:`sawlog.torch.Run.declare_items`."""
        if self._run is not None:
            self._run.declare_items(counts, total, times)

    def flush(self) -> None:
        """Write everything logged so far to disk."""
        if self._run is not None and self._writer is not None:
            self._run.flush()
            self._writer.flush()

    def close(self) -> None:
        """Write everything to disk, and close the files."""
        if self._writer is not None:
            self._writer.close()
        if self._run is not None:
            self._run.close()
        self._run = self._writer = self._epoch = None

    def fail(self) -> None:
        """Mark the files as those of a failed program when they are closed."""
        if self._run is not None:
            self._run.fail()

    # -- one epoch --------------------------------------------------------------------------------

    def _of_epoch(self, epoch: int) -> Run:
        if self._run is None or epoch != self._epoch:
            self.close()
            exists, name = self._exists, f"epoch-{int(epoch)}"
            run = Run(name, root=self.path, exists=exists, config=self._options.to_json())
            run._watch(self._backend, True)
            self._run, self._epoch = run, epoch
            self._writer = store.create(
                run.path / STEPS,
                exists="append",
                duplicates="first",
                interval=self._options.interval,
            )
            self._log_rows_without_steps(run)
        return self._run

    def _log_rows_without_steps(self, run: Run) -> None:
        """Let examples be logged again of which a killed program wrote the row and no step."""
        with store.open(run.path / STEPS) as reader:
            known = reader.ids("step") if "step" in reader.names else ()
        run._current_pass().seen.keep(np.asarray(known))

    def _corrected(self, step: int) -> bool:
        """Read the state of the optimizer for a new step; False before its first."""
        if self._correction is None:
            return True
        if not self._correction.ready():
            return False
        if step != self._last:
            self._correction.refresh()
            self._last = step
        self._backend.correction = self._correction
        return True

    def _share(self, active: BatchCapture, size: int) -> np.ndarray:
        """Return by what the gradient of each example is multiplied in that of the step."""
        if len(active.scales) != 1 or active.scales[0] is None:
            return np.full(size, np.nan)
        scale = active.scales[0]
        by = to_numpy(scale) if isinstance(scale, Tensor) else np.full(size, scale)
        share = np.divide(active.factor, by, out=np.zeros(size), where=by > 0)
        return share / averaging_divisor(self._model, self._backend.watched.parameters.values())

    def _warn_twice(self, ids: np.ndarray, own: np.ndarray, epoch: int) -> None:
        if dist.is_available() and dist.is_initialized():
            return  # samplers repeat some examples, so that processes have equally many
        ids = ids[~own & ~np.isin(ids, ids[own])]  # others are repeated in this batch
        if not len(ids):
            return
        warnings.warn(
            f"{len(ids)} examples of a batch, such as {ids[0].item()!r}, were logged before in "
            f"epoch {epoch}, and are not logged again.",
            stacklevel=4,
        )


def _of_all(ids: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return shares in which an id that occurs several times in a batch has the sum of its own.

    >>> _of_all(np.array([3, 1, 3]), np.array([0.5, 0.25, 0.25])).tolist()
    [0.75, 0.25, 0.75]
    """
    _, places = np.unique(ids, return_inverse=True)
    return np.bincount(places, shares)[places]


def _training_options(config: Any) -> Options:
    options = read(config)
    if options.statistic:
        raise ArgumentError(
            "Statistics are those of one state of the weights, which change while a model trains. "
            "Hint: leave `statistic` out, and run trainer.extract_log() or run.extract(...) after "
            "training."
        )
    return read(options, weights="any", duplicates="first")


def _chosen(steps: Steps) -> Callable[[int], bool]:
    if steps is None:
        return lambda step: True
    if callable(steps):
        return steps
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        return lambda step: step % steps == 0
    if isinstance(steps, Collection) and not isinstance(steps, (str, bytes)):
        chosen = {int(each) for each in steps}
        return lambda step: step in chosen
    refuse("steps", "a positive integer, a collection of steps, or a function", steps)
