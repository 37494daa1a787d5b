"""Compare two replays: did examples change that were not replaced?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class ChangeLimits:
    """From which size a change counts.

    Args:
        share: of the change of the examples that were changed.
        rounding: of the values themselves.
    """

    share: float
    rounding: float

    @classmethod
    def of(cls, dtypes: Set[torch.dtype], alike: bool = True) -> ChangeLimits:
        """Return the limits for a program with these dtypes; the least precise one decides.

        Args:
            dtypes: those of the graph.
            alike: whether all shapes stay, so that the same sums are rounded in the same way.
        """
        floating = {each for each in dtypes if each.is_floating_point}
        if floating - {torch.float32, torch.float64}:
            return cls(0.05, 0.01) if alike else cls(0.1, 0.05)
        if floating <= {torch.float64}:
            return cls(1e-7, 1e-11) if alike else cls(1e-4, 1e-11)
        return cls(2e-3, 2e-5)


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


def differs(before: Tensor, after: Tensor, labels: Tensor, chosen: Tensor) -> bool:
    """Return whether a bit of the values of other examples differs; most often none does."""
    apart = before.detach() != after.detach()
    rows = apart.reshape(labels.numel(), -1).any(1) if apart.numel() else apart.flatten()
    rest = ~chosen[labels.flatten().cpu()].to(rows.device)
    return bool((rows & rest).any()) if len(rows) else False


def affected(
    before: Tensor, after: Tensor, labels: Tensor, chosen: Tensor, limits: ChangeLimits
) -> list[int]:
    """Return the examples whose values differ although others were changed.

    Args:
        before, after: the values.
        labels: the example of each row.
        chosen: the examples that were changed, a mask.
        limits: from which size a change counts.
    """
    if not differs(before, after, labels, chosen):
        return []
    batch = len(chosen)
    one, two = before.detach().double(), after.detach().double()
    there = torch.isfinite(one) & torch.isfinite(two)
    change = torch.where(there, two - one, 0).abs()
    changes = by_example(change, labels, batch).cpu()
    size = by_example(torch.where(there, one, 0).abs(), labels, batch).cpu()
    least = limits.share * changes[chosen].amax() + limits.rounding * size
    return [int(each) for each in torch.nonzero(~chosen & (changes > least)).flatten()]


def changed(
    before: Tensor, after: Tensor, labels: Tensor, chosen: Tensor, limits: ChangeLimits
) -> list[int]:
    """Return the examples whose gradients differ by a share of themselves."""
    if not differs(before, after, labels, chosen):
        return []
    one, two = before.double(), after.double()
    batch = len(chosen)
    change = by_example((two - one).abs().nan_to_num(), labels, batch).cpu()
    size = by_example(one.abs().nan_to_num(), labels, batch).cpu()
    least = limits.share * size + limits.rounding * size.amax()
    return [int(each) for each in torch.nonzero(~chosen & (change > least)).flatten()]


def factors(
    before: Sequence[Tensor | None],
    after: Sequence[Tensor | None],
    labels: Sequence[Tensor],
    batch: int,
) -> list[Tensor]:
    """Return by what the values of each example changed, in shapes that broadcast to the values.

    Args:
        before, after: tensors of values; None counts as no change.
        labels: the examples of the rows of each.
        batch: the number of examples.
    """
    products, squares = torch.zeros(2, batch, dtype=torch.float64)
    for one, two, own in zip(before, after, labels, strict=True):
        if one is None or two is None or not one.numel():
            continue
        rows = one.double().cpu().reshape(own.numel(), -1)
        others = two.double().cpu().reshape(own.numel(), -1)
        products.index_add_(0, own.flatten().cpu(), (rows * others).sum(1))
        squares.index_add_(0, own.flatten().cpu(), (rows**2).sum(1))
    by = torch.where(squares > 0, products / squares, 1.0)
    return [
        torch.ones(())
        if one is None
        else by[own.cpu()].reshape(*own.shape, *(1,) * (one.dim() - own.dim())).to(one)
        for one, own in zip(before, labels, strict=True)
    ]


def sizes(values: Tensor, labels: Tensor, batch: int) -> Tensor:
    """Return a norm of the values of each example, ``[batch]``."""
    if not values.numel():
        return torch.zeros(batch, dtype=torch.float64)
    rows = values.detach().reshape(labels.numel(), -1).nan_to_num(0, 0, 0).float()
    return by_example(rows.norm(dim=1), labels, batch).double().cpu()
