"""Compare what a replay gives for the examples that were changed, and for the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Limits:
    """From which size a change counts.

    Args:
        share: of the change of the examples that were changed.
        rounding: of the values themselves.
    """

    share: float
    rounding: float

    @classmethod
    def of(cls, dtypes: Set[torch.dtype]) -> Limits:
        """Return the limits for a program with these dtypes; the least precise one decides."""
        floating = {each for each in dtypes if each.is_floating_point}
        if floating - {torch.float32, torch.float64}:
            return cls(0.1, 0.05)
        return cls(1e-4, 1e-11) if floating <= {torch.float64} else cls(2e-3, 2e-5)


def by_example(values: Tensor, labels: Tensor, batch: int) -> Tensor:
    """Return the greatest of the values of each example, ``[batch]``.

    ``labels`` has the example of each row, in the shape of the first axes.
    """
    rows = values.reshape(labels.numel(), -1) if values.numel() else values.new_zeros(0, 1)
    own = rows.amax(1) if rows.numel() else rows.new_zeros(len(rows))
    found = torch.zeros(batch, dtype=own.dtype, device=own.device)
    if not len(own):
        return found
    return found.scatter_reduce(0, labels.flatten().to(own.device), own, "amax")


def affected(
    before: Tensor, after: Tensor, labels: Tensor, chosen: Tensor, limits: Limits
) -> list[int]:
    """Return the examples whose values differ although others were changed.

    Args:
        before, after: the values.
        labels: the example of each row.
        chosen: the examples that were changed, a mask.
        limits: from which size a change counts.
    """
    batch = len(chosen)
    one, two = before.detach().double(), after.detach().double()
    there = torch.isfinite(one) & torch.isfinite(two)
    change = torch.where(there, two - one, 0).abs()
    changes = by_example(change, labels, batch).cpu()
    size = by_example(torch.where(there, one, 0).abs(), labels, batch).cpu()
    least = limits.share * changes[chosen].amax() + limits.rounding * size
    return [int(each) for each in torch.nonzero(~chosen & (changes > least)).flatten()]
