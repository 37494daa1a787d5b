"""Logging a dataset with a ``LightningModule``, before or after fitting."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from sawlog.capture._extract import Extraction
from sawlog.errors import ArgumentError
from sawlog.torch import Run
from sawlog.torch._model._modes import modes_restored


def extract(
    run: Run,
    module: Any,
    loader: Iterable[Any],
    data_id: Callable[[Any], Any] | str | int | None = None,
    *,
    mask: Callable[[Any], Any] | None = None,
    check: bool = True,
    quiet: bool = False,
) -> Extraction:
    """Log every example of a loader with the ``training_step`` of a module, in eval mode.

    Args:
        run: a run that watches the module, or a part of it.
        module: the ``LightningModule``, whose ``training_step`` returns the loss of a batch.
        loader: the batches; after ``run.eval()`` they are queries.
        data_id: as for :meth:`sawlog.torch.Run.batches`.
        mask: a function from a batch to the mask of its positions that count.
        check: whether the first batch is compared with its examples run alone.
        quiet: whether to hide progress bars.

    Raises:
        ArgumentError: ``training_step`` returned no loss.
    """

    def step(model: Any, batch: Any) -> Tensor:
        found = module.training_step(move_data_to_device(batch, module.device), 0)
        loss = found.get("loss") if isinstance(found, dict) else found
        if not isinstance(loss, Tensor):
            raise ArgumentError(
                "training_step of the module returned no loss. Hint: return the loss, or a dict "
                "with the key 'loss'."
            )
        return loss

    with _silent(module):
        return run.extract(step, loader, data_id, mask=mask, check=check, quiet=quiet)


@contextlib.contextmanager
def _silent(module: Any) -> Iterator[None]:
    """Put a module into eval mode, without its ``self.log``, for the time of a ``with``."""
    names = ("log", "log_dict")
    for name in names:
        vars(module)[name] = lambda *args, **options: None
    try:
        with modes_restored(module):
            module.eval()
            yield
    finally:
        for name in names:
            del vars(module)[name]


class FirstBatches:
    """The first batches of a loader.

    Args:
        loader: the loader.
        most: how many; -1 is all of them.
    """

    def __init__(self, loader: Iterable[Any], most: int) -> None:
        self._loader, self._most = loader, most

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._loader), self._most if self._most > 0 else None)
