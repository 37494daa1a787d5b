"""The ``.grad`` of a parameter before and after a backward pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def grad_state(parameter: Tensor) -> tuple[Any, ...]:
    """Return a key that changes when the gradient of a parameter is replaced or written."""
    grad = parameter.grad
    return (None,) if grad is None else (id(grad), grad._version)


def copied(grad: Tensor | None) -> Tensor | None:
    """Return a copy of a gradient."""
    return None if grad is None else grad.detach().clone()


def added(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Return what a backward pass added to a gradient."""
    return after if before is None or after is None else after - before
