"""``SawlogCallback``: logs gradients and metrics while a Trainer trains."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from sawlog._paths import absolute
from sawlog.capture._metrics import RunMetrics
from sawlog.errors import ArgumentError, CaptureError
from sawlog.huggingface._batches import ExampleIds, detach
from sawlog.huggingface._loss import check_supported, token_counts
from sawlog.torch import TrainingCapture

_PATCHED = ("training_step", "compute_loss")


class SawlogCallback(TrainerCallback):
    """Logs the gradient of each example that a Trainer trains on, and the Trainer's metrics.

    Each row is the gradient of a batch of one example, whatever the Trainer divides its loss by.
    Gradients are those that training computes; weights, losses and the random state stay the same.
    See :class:`sawlog.torch.TrainingCapture` for what is stored.

    Args:
        project: the name of the capture, a folder in ``root``; None logs only metrics.
        config: options as :meth:`sawlog.torch.Run.setup` takes them, such as ``{"compress": 16}``.
        root: the folder of all runs.
        steps: at which steps to log gradients: every n-th, a collection of steps, or a function of
            the number of a step; None is all of them.
        correct: whether gradients are multiplied by what the optimizer multiplies them with, one
            over the root of Adam's second moments.
        data_id: None names examples by their row numbers in the dataset, a string by a column of
            it, ``"hash"`` by a hash of their rows; a function gets a batch.
        names, types, uncovered: as for :meth:`sawlog.torch.Run.watch`.
        exists: what to do about an existing capture: ``"append"``, ``"replace"`` or ``"error"``.
        sinks: where everything that the Trainer logs is written; by default a store in the folder
            ``metrics`` of the project.

    >>> callback = SawlogCallback("my_training", {"compress": 16}, steps=10)
    """

    def __init__(
        self,
        project: str | None = None,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] = "sawlog",
        steps: Any = None,
        correct: bool = False,
        data_id: str | Callable[[Any], Any] | None = None,
        names: Any = None,
        types: Any = None,
        uncovered: str = "func",
        exists: str = "append",
        sinks: Sequence[Any] | None = None,
    ) -> None:
        if project is None and sinks is None:
            raise ArgumentError(
                "SawlogCallback() would log nothing. Hint: a project, for gradients, or sinks=..."
            )
        self.project, self._root, self._data_id = project, absolute(root), data_id
        self._options = {
            "config": config,
            "steps": steps,
            "correct": correct,
            "names": names,
            "types": types,
            "uncovered": uncovered,
            "exists": exists,
        }
        self._metrics = RunMetrics(self._root / (project or "") / "metrics", sinks)
        self.capture: TrainingCapture | None = None
        self._trainer: Any = None
        self._loader: Any = None
        self._epoch = 0

    # -- events of the Trainer --------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        """Start to capture."""
        if self.project is None:
            return
        self._stop()
        trainer = _trainer_of(self)
        check_supported(trainer)
        self._trainer, self._loader = trainer, of["train_dataloader"]
        self._ids = ExampleIds(trainer.train_dataset, self._data_id)
        self._ids.attach(self._loader)
        self.capture = TrainingCapture(
            trainer.model_wrapped,
            self.project,
            root=self._root,
            optimizer=of["optimizer"],
            **self._options,
        )
        own = {"training_step": self._training_step, "compute_loss": self._compute_loss}
        for name in _PATCHED:
            original = getattr(trainer, name)
            setattr(trainer, name, functools.partial(own[name], original))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        """Note the number of the epoch."""
        if self.capture is not None:
            self._ids.restart()
        self._epoch = int((state.epoch or 0.0) + 1e-6)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **of: Any
    ) -> None:
        """Write what the Trainer logs to the sinks."""
        if not state.is_world_process_zero:
            return
        numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, (Number, Tensor))}
        self._metrics.log((numbers,), {"step": state.global_step})

    def on_save(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        """Write everything to disk with each checkpoint."""
        self._metrics.flush()
        if self.capture is not None:
            self.capture.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        """Write everything to disk, and give the Trainer its methods back."""
        self._stop()
        self._metrics.finalize()

    def close(self) -> None:
        """Close the files and the sinks."""
        self._stop()
        self._metrics.close()

    def _stop(self) -> None:
        if self.capture is not None:
            self.capture.close()
            self.capture = None
        if self._trainer is not None:
            for name in _PATCHED:
                self._trainer.__dict__.pop(name, None)
            detach(self._loader)
            self._trainer = self._loader = None

    # -- in place of methods of the Trainer -------------------------------------------------------

    def _training_step(
        self, original: Any, model: Any, inputs: Any, *args: Any, **options: Any
    ) -> Any:
        assert self.capture is not None
        ids, trainer = self._ids.take(inputs), self._trainer
        _check_rows(inputs, len(ids))
        with self.capture(ids, step=trainer.state.global_step, epoch=self._epoch):
            return original(model, inputs, *args, **options)

    def _compute_loss(
        self, original: Any, model: Any, inputs: Any, *args: Any, **options: Any
    ) -> Any:
        capture, trainer = self.capture, self._trainer
        if capture is None or not capture.active:
            return original(model, inputs, *args, **options)
        counts = token_counts(trainer, inputs)
        found = original(model, inputs, *args, **options)
        total = options.get("num_items_in_batch", args[1] if len(args) > 1 else None)
        if counts is not None:
            times = 1.0
            if total is not None and trainer.args.average_tokens_across_devices:
                times = float(trainer.accelerator.num_processes // _tensor_parallel(trainer))
            capture.declare_items(counts, total, times)
        capture.declare_loss(found[0] if isinstance(found, tuple) else found)
        return found


def _tensor_parallel(trainer: Any) -> int:
    size = getattr(trainer, "get_tp_size", None)
    return 1 if size is None else int(size())


def _check_rows(inputs: Any, examples: int) -> None:
    """Raise a CaptureError where a collator joins all examples of a batch into one row."""
    sizes = {len(v) for v in inputs.values() if isinstance(v, Tensor) and v.dim() > 1}
    if examples > 1 and sizes == {1}:
        raise CaptureError(
            f"The data collator joins {examples} examples into one row, without padding, so their "
            "gradients cannot be separated. Hint: per_device_train_batch_size=1, or "
            "padding_free=False."
        )


def _trainer_of(callback: TrainerCallback) -> Any:
    """Return the Trainer that calls a callback, which is not among the arguments of an event."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        handler = getattr(found, "callback_handler", None)
        if handler is not None and callback in handler.callbacks:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise ArgumentError(
        "SawlogCallback works with a transformers.Trainer only. Hint: Trainer(..., "
        "callbacks=[callback])."
    )
