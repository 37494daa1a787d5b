"""The state of optimizers: which one holds it, and Adam's second moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def bare_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that others, such as accelerate's, wrap."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def adam_second_moments(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return the second moments by whose root Adam divides, without their bias.

    Args:
        state: of the parameter, with ``exp_avg_sq``; AMSGrad divides by ``max_exp_avg_sq``.
        group: of the parameter. Optimizers without ``betas``, such as Adafactor, do not divide
            by ``1 - beta2 ** step``.
    """
    moments: Tensor = state.get("max_exp_avg_sq", state["exp_avg_sq"]).detach().float()
    step = state.get("step", group.get("step"))  # some count the steps of a group
    if step is None or "betas" not in group:
        return moments
    return moments / (1.0 - float(group["betas"][1]) ** float(step))
