"""Lists of numbers that a program reads by ``tensor.tolist()``, which no operation shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_tolist = torch.Tensor.tolist
_lock = threading.Lock()
_users = 0
_local = threading.local()


@contextlib.contextmanager
def reporting_lists(report: Callable[[Tensor], None]) -> Iterator[None]:
    """Pass each tensor that this thread turns into a list to a function, inside the ``with``."""
    global _users
    before = getattr(_local, "report", None)
    _local.report = report
    with _lock:
        if not _users:
            torch.Tensor.tolist = _reported  # type: ignore[assignment, method-assign]
        _users += 1
    try:
        yield
    finally:
        _local.report = before
        with _lock:
            _users -= 1
            if not _users:
                torch.Tensor.tolist = _tolist  # type: ignore[method-assign]


def _reported(self: Tensor) -> Any:
    report = getattr(_local, "report", None)
    if report is not None:
        report(self)
    return _tolist(self)


def elements(tensor: Tensor) -> list[Any]:
    """Return all elements in a row, without reporting them."""
    found: list[Any] = _tolist(tensor.detach().flatten())
    return found
