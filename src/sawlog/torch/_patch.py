"""Seeing the loss: ``torch.autograd.backward`` tells of it while a batch is logged.

``loss.backward()`` calls that function. In its place stands one that tells the batch which loss it
was, if this thread logs one, and then calls the original.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Seen = Callable[[Tensor], None]

_lock = threading.Lock()
_watching = 0
_original: Any = None
_local = threading.local()


@contextlib.contextmanager
def losses_seen_by(seen: Seen) -> Iterator[None]:
    """Call ``seen(loss)`` before each backward pass of this thread, for the time of a ``with``."""
    before = getattr(_local, "seen", None)
    _install()
    _local.seen = seen
    try:
        yield
    finally:
        _local.seen = before
        _uninstall()


def _install() -> None:
    global _watching, _original
    with _lock:
        _watching += 1
        if _watching > 1:
            return
        _original = original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            seen = getattr(_local, "seen", None)
            several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if seen is not None and several and isinstance(several[0], Tensor):
                seen(several[0])
            return original(tensors, *args, **kwargs)

        torch.autograd.backward = backward


def _uninstall() -> None:
    global _watching
    with _lock:
        _watching -= 1
        if not _watching:
            torch.autograd.backward = _original
