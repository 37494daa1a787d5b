"""``LightningCallback``, exported as ``SawlogCallback``: gradients while a module is fitted."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from sawlog.errors import CaptureError
from sawlog.torch import TrainingCapture
from sawlog.torch._positioned_batches import attach_positions, detach_positions

_HINT = "Hint: SawlogCallback(data_id=lambda batch: ...) names the examples of a batch."


class PositionedBatch:
    """A batch with the positions of its examples, until the training step gets it."""

    def __init__(self, batch: Any, positions: list[int]) -> None:
        self.batch, self.positions = batch, positions


class _SkippedBatch(Exception):
    """A batch that a module does not train on."""


class LightningCallback(Callback):
    """Logs the gradient of each example that a module is trained on.

    Each row is the gradient of a batch of one example, whatever the loss is divided by for gradient
    accumulation. See :class:`sawlog.torch.TrainingCapture` for what is stored. A module that
    optimizes by hand and divides its loss for that says so, by
    ``callback.capture.declare_loss(loss)`` before.

    Args:
        project: the name of the capture, a folder in ``root``.
        config: options as :meth:`sawlog.torch.Run.setup` takes them, such as ``{"compress": 16}``.
        root: the folder of all runs.
        steps: at which steps to log: every n-th, a collection of steps, or a function; None is all.
        correct: whether gradients are multiplied by what the optimizer multiplies them with.
        data_id: a function from a batch to its ids; None numbers the examples by their positions
            in the dataset.
        mask: a function from a batch to the mask of its positions that count.
        names, types, uncovered: as for :meth:`sawlog.torch.Run.watch`.
        exists: what to do about an existing capture: ``"append"``, ``"replace"`` or ``"error"``.
    """

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] = "sawlog",
        steps: Any = None,
        correct: bool = False,
        data_id: Callable[[Any], Any] | None = None,
        mask: Callable[[Any], Any] | None = None,
        names: Any = None,
        types: Any = None,
        uncovered: str = "func",
        exists: str = "append",
    ) -> None:
        self._data_id, self._mask = data_id, mask
        self._options = {
            "project": project,
            "config": config,
            "root": root,
            "steps": steps,
            "correct": correct,
            "names": names,
            "types": types,
            "uncovered": uncovered,
            "exists": exists,
        }
        self.capture: TrainingCapture | None = None
        self._positions: list[int] | None = None
        self._skips = False
        self._open = contextlib.ExitStack()
        self._patched: list[tuple[Any, str]] = []
        self._loaders: list[Any] = []

    # -- hooks of Lightning -----------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the batches of training carry positions, before loaders are created."""
        if stage != "fit" or self._data_id is not None:
            return
        process = trainer.strategy.process_dataloader
        before = pl_module._on_before_batch_transfer

        def process_dataloader(loader: Any) -> Any:
            found = process(loader)
            if trainer.training:
                attach_positions(found, PositionedBatch, _HINT)
                self._loaders.append(found)
            return found

        def on_before_batch_transfer(batch: Any, *args: Any, **options: Any) -> Any:
            if isinstance(batch, PositionedBatch):
                self._positions = batch.positions
                batch = trainer.precision_plugin.convert_input(batch.batch)
            return before(batch, *args, **options)

        self._patch(trainer.strategy, "process_dataloader", process_dataloader)
        self._patch(pl_module, "_on_before_batch_transfer", on_before_batch_transfer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to capture."""
        wrapped = trainer.strategy.model
        model = wrapped if isinstance(wrapped, DistributedDataParallel) else pl_module
        several = trainer.optimizers
        optimizer = several[0] if len(several) == 1 else None  # otherwise no rate is that of all
        self.capture = TrainingCapture(model, optimizer=optimizer, **self._options)
        if pl_module.automatic_optimization:  # by hand, the loss that is returned may be another
            step = pl_module.training_step
            self._patch(pl_module, "training_step", functools.partial(self._training_step, step))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start to log a batch."""
        assert self.capture is not None
        ids = self._ids(batch)
        mask = None if self._mask is None else self._mask(batch)
        step, epoch = trainer.global_step, trainer.current_epoch
        self._open.enter_context(self.capture(ids, step=step, epoch=epoch, mask=mask))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the batch; one whose training step returned None is skipped."""
        if self._skips:
            self._give_up(_SkippedBatch())
        self._open.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write everything to disk."""
        if self.capture is not None:
            self.capture.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give up the batch, and write what was logged before it to disk."""
        self._give_up(exception)
        if self.capture is not None:
            self.capture.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the module, the trainer and the loaders back what was theirs."""
        for owner, name in self._patched:
            vars(owner).pop(name, None)
        for loader in self._loaders:
            detach_positions(loader)
        self._patched.clear()
        self._loaders.clear()

    def _give_up(self, exception: BaseException) -> None:
        given_up, self._open = self._open, contextlib.ExitStack()
        with contextlib.suppress(type(exception)):
            given_up.__exit__(type(exception), exception, exception.__traceback__)

    # -- the batch --------------------------------------------------------------------------------

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        vars(owner)[name] = value
        self._patched.append((owner, name))

    def _ids(self, batch: Any) -> Any:
        if self._data_id is not None:
            return self._data_id(batch)
        if self._positions is None:
            raise CaptureError(f"Which examples a batch has is not known. {_HINT}")
        ids, self._positions = self._positions, None
        return ids

    def _training_step(self, step: Any, *args: Any, **options: Any) -> Any:
        found = step(*args, **options)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        self._skips = loss is None
        if self.capture is not None and isinstance(loss, Tensor):
            self.capture.declare_loss(loss)
        return found
