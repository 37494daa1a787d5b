"""Which elements of a tensor belong to which example, measured by two backward passes.

Between the two, the loss of each example is multiplied by a power of two of its own. Nothing that
comes after in a backward pass changes the ratio, as long as it belongs to that example alone; where
examples are mixed, the ratio is none of these powers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BASE = 16
"""How many different factors one pass has."""

_MIDDLE = BASE // 2


@dataclasses.dataclass(frozen=True)
class Layout:
    """Examples along an axis, each with the same number of places there.

    Args:
        axis: the axis.
        minor: the places of an example are ``batch`` apart, as in a tensor that was flattened from
            ``[places, batch]``, or concatenated of several batches.
    """

    axis: int
    minor: bool = False

    def spread(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """A value for each example, in a shape that broadcasts to ``shape``."""
        each = shape[self.axis] // len(values)
        if each != 1:
            values = values.repeat(each) if self.minor else values.repeat_interleave(each)
        return values.reshape(-1, *(1,) * (len(shape) - 1 - self.axis))

    def split(self, tensor: Tensor, batch: int) -> Tensor:
        """``[batch, ...]``, with the places of the axis where the axis was."""
        size = tensor.shape[self.axis]
        sizes = (size // batch, batch) if self.minor else (batch, size // batch)
        return tensor.unflatten(self.axis, sizes).movedim(self.axis + self.minor, 0)


def codes(batch: int, device: torch.device | None = None) -> list[Tensor]:
    """For each pass, the exponent of the factor of each example; together they tell all apart."""
    numbers = torch.arange(batch, device=device)
    passes = max(1, math.ceil(math.log(max(batch, 2), BASE) - 1e-9))
    return [(numbers // BASE**each) % BASE - _MIDDLE for each in range(passes)]


def factors(code: Tensor) -> Tensor:
    """The factors of a pass, in float64."""
    return torch.exp2(code.double())


def fits(layout: Layout, plain: Tensor, coded: Sequence[Tensor], every: Sequence[Tensor]) -> bool:
    """Whether all elements have the ratios that a layout says."""
    tolerance = _tolerance(plain)
    for scaled, code in zip(coded, every, strict=True):
        by = layout.spread(factors(code), plain.shape).to(plain.device, plain.dtype)
        there = scaled / by  # powers of two: exact
        if not _close(there, plain, tolerance):
            return False
    return True


def _close(one: Tensor, two: Tensor, tolerance: float) -> bool:
    """Element by element, but for what is nothing next to the greatest."""
    if not two.numel():
        return True
    greatest = two.abs().amax()
    return bool(((one - two).abs() <= tolerance * (two.abs() + tolerance * greatest)).all())


def _tolerance(tensor: Tensor) -> float:
    return max(4 * float(torch.finfo(tensor.dtype).eps) ** 0.75, 1e-7)


def layout_of(
    plain: Tensor, coded: Sequence[Tensor], every: Sequence[Tensor], axis: int, batch: int
) -> Layout | None:
    """The layout of a gradient, ``axis`` first; None where there is none."""
    for layout in candidates(plain.shape, axis, batch):
        if fits(layout, plain, coded, every):
            return layout
    return None


def candidates(shape: Sequence[int], axis: int, batch: int) -> Iterator[Layout]:
    """Layouts that a tensor could have, the likely ones first."""
    axes = sorted(range(len(shape)), key=lambda each: (each != axis, each))
    for each in axes:
        if shape[each] == batch:
            yield Layout(each)
    for each in axes[:2]:
        if shape[each] > batch and shape[each] % batch == 0:
            first = axis == 1
            yield Layout(each, first)
            yield Layout(each, not first)


def labels_of(plain: Tensor, coded: Sequence[Tensor], batch: int) -> Tensor | None:
    """The example of each element, -1 for those that are zero; None where examples are mixed."""
    tolerance = 64 * _tolerance(plain)
    there = plain.abs() > plain.abs().amax() * torch.finfo(plain.dtype).eps
    labels = torch.zeros(plain.shape, dtype=torch.long, device=plain.device)
    for place, scaled in enumerate(coded):
        ratio = torch.where(there, scaled / torch.where(there, plain, 1), 1).double()
        if not bool((ratio > 0).all()):
            return None
        exponent = ratio.log2().round()
        if bool(((ratio / exponent.exp2() - 1).abs() > tolerance).any()):
            return None
        digit = exponent.long() + _MIDDLE
        if bool(((digit < 0) | (digit >= BASE)).any()):
            return None
        labels += digit * BASE**place
    labels = torch.where(there, labels, -1)
    return None if bool((labels >= batch).any()) else labels
