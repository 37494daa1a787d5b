"""Which modules of a model are in training mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Put each module back into its own mode at the end of the ``with``."""
    before = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
