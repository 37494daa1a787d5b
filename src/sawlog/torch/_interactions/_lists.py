"""Numbers that a program reads by ``tensor.tolist()`` or ``numpy()``, which no operation shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_tolist = torch.Tensor.tolist
_numpy = torch.Tensor.numpy
_lock = threading.Lock()
_users = 0
_local = threading.local()


@contextlib.contextmanager
def reporting_lists(
    report: Callable[[Tensor], None], arrays: Callable[[Tensor], None] | None = None
) -> Iterator[None]:
    """Pass each tensor that this thread turns into a list or an array to a function.

    Args:
        report: receives those that become lists.
        arrays: receives those that become arrays.
    """
    global _users
    before = getattr(_local, "report", None), getattr(_local, "arrays", None)
    _local.report, _local.arrays = report, arrays
    with _lock:
        if not _users:
            torch.Tensor.tolist = _reported  # type: ignore[assignment, method-assign]
            torch.Tensor.numpy = _reported_array  # type: ignore[assignment, method-assign]
        _users += 1
    try:
        yield
    finally:
        _local.report, _local.arrays = before
        with _lock:
            _users -= 1
            if not _users:
                torch.Tensor.tolist = _tolist  # type: ignore[method-assign]
                torch.Tensor.numpy = _numpy  # type: ignore[method-assign]


def _reported(self: Tensor) -> Any:
    report = getattr(_local, "report", None)
    if report is not None:
        report(self)
    return _tolist(self)


def _reported_array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    report = getattr(_local, "arrays", None)
    if report is not None:
        report(self)
    return _numpy(self, *args, **kwargs)


def elements(tensor: Tensor) -> list[Any]:
    """Return all elements in a row, without reporting them."""
    found: list[Any] = _tolist(tensor.detach().flatten())
    return found
