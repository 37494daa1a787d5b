"""A batch without ids: nothing is logged, so a loss of examples in it is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._hooks._autograd_patches import Backward, Listener, patched
from sawlog.torch._hooks._hooks import in_backward


@contextlib.contextmanager
def empty_batch() -> Iterator[None]:
    """Refuse the backward pass of a loss that has examples, inside the ``with``."""

    def check(backward: Backward) -> Any:
        if not in_backward():
            for loss in backward.losses:
                refuse_examples(loss)
        return backward.run()

    with patched(Listener(check, lambda loss, factor: None, lambda: None)):
        yield


def refuse_examples(loss: Tensor) -> None:
    """Raise a CaptureError if a loss has examples: without any, a sum is 0 and a mean is NaN."""
    value = loss.detach()
    if bool((value.isfinite() & (value != 0)).any()):
        raise CaptureError(
            "data_id names no examples, and the loss of the batch is not zero, so its examples "
            "would be lost. Hint: pass one id for each example of the batch."
        )
