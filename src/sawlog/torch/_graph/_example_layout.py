"""Find which elements of a tensor are those of which example, measured by two backward passes.

Between the two, the loss of each example is multiplied by a factor of its own. Nothing that comes
after in a backward pass changes the ratio, as long as it belongs to that example alone; where
examples are mixed, the ratio is not one of these factors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence, Set

import torch
from torch import Tensor

_EXPONENTS = (-7, -5, -2, -4, -3, 4, 2, 6, 5, -6)
"""No mean of the first few of these powers of two is near another power of two."""


@dataclasses.dataclass(frozen=True)
class ExampleLayout:
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


@dataclasses.dataclass(frozen=True)
class Codes:
    """The factors of the examples in each pass; together they tell all examples apart.

    Args:
        factors: for each pass, ``[batch]`` in float64.
        powers: they are a few powers of two, so that rounding changes no ratio; otherwise each
            pass tells all examples apart.
        tolerance: how far a ratio may be off.
        floor: what is nothing, next to the greatest element of a gradient.
    """

    factors: tuple[Tensor, ...]
    powers: bool
    tolerance: float
    floor: float

    def examples(self, ratios: Sequence[Tensor]) -> Tensor:
        """The examples that have such ratios, -1 for none."""
        labels = torch.zeros(ratios[0].shape, dtype=torch.long, device=ratios[0].device)
        wrong = torch.zeros_like(labels, dtype=torch.bool)
        for place, (ratio, factors) in enumerate(zip(ratios, self.factors, strict=True)):
            known = torch.exp2(torch.tensor(_EXPONENTS).double()) if self.powers else factors
            known = known.to(ratio.device)
            number = _nearest(known, ratio)
            wrong |= (ratio / known[number] - 1).abs() > self.tolerance
            if self.powers:
                labels += number * len(known) ** place
            else:
                wrong |= (number != labels) & (place > 0)
                labels = number
        wrong |= labels >= len(self.factors[0])
        return torch.where(wrong, -1, labels)


def _nearest(known: Tensor, values: Tensor) -> Tensor:
    """For each value, the number of the known one that is nearest."""
    ordered, order = known.sort()
    above = torch.searchsorted(ordered, values.contiguous()).clamp(1, max(len(known) - 1, 1))
    above = above.clamp(max=len(known) - 1)
    below = (above - 1).clamp(min=0)
    nearer = (values - ordered[below]).abs() < (ordered[above] - values).abs()
    return order[torch.where(nearer, below, above)]


def codes(batch: int, dtypes: Set[torch.dtype], passes: int = 1, *, powers: bool = False) -> Codes:
    """Factors for examples: numbers from 1 to 2, in some passes with different ones.

    For gradients of low precision, and for very many examples, they are powers of two.

    Args:
        batch: how many examples there are.
        dtypes: those of the graph; the least precise decides.
        passes: with two, what is a mean over examples does not look like one of them by chance.
        powers: take powers of two: multiplied by one, everything is rounded in the same way.
    """
    floating = {each for each in dtypes if each.is_floating_point}
    low = bool(floating - {torch.float32, torch.float64})
    exact = floating <= {torch.float64}
    if low or powers or batch > (100_000 if exact else 500):
        base = len(_EXPONENTS)
        digits = max(1, math.ceil(math.log(max(batch, 2), base) - 1e-9))
        numbers, known = torch.arange(batch), torch.exp2(torch.tensor(_EXPONENTS).double())
        factors = [known[(numbers // base**each) % base] for each in range(digits)]
        return Codes(tuple(factors), True, 0.05 if low else 1e-3, 1e-2 if low else 1e-5)
    generator = torch.Generator().manual_seed(passes)
    factors = []
    for _ in range(passes):
        order = torch.randperm(batch, generator=generator)
        apart = 0.1 + 0.8 * torch.rand(batch, generator=generator, dtype=torch.float64)
        factors.append(1 + (order + apart) / max(batch, 1))
    return Codes(tuple(factors), False, 1e-8 if exact else 2e-5, 1e-10 if exact else 1e-5)


def fits(layout: ExampleLayout, plain: Tensor, coded: Sequence[Tensor], every: Codes) -> bool:
    """Whether all elements have the ratios that a layout says."""
    if not plain.numel():
        return True
    least = every.floor * plain.abs().amax()
    for scaled, factors in zip(coded, every.factors, strict=True):
        by = layout.spread(factors, plain.shape).to(plain.device, plain.dtype)
        for part in (slice(0, 4), slice(4, None)):  # a few rows tell of most that do not fit
            of = by[part] if layout.axis == 0 else by
            size = plain[part].abs()
            apart = (scaled[part] / of - plain[part]).abs()
            if not bool((apart <= every.tolerance * size + least).all()):
                return False
    return True


def layout_of(
    plain: Tensor, coded: Sequence[Tensor], every: Codes, axis: int, batch: int
) -> ExampleLayout | None:
    """The layout of a gradient, ``axis`` first; None if no layout fits."""
    for layout in candidates(plain.shape, axis, batch):
        if fits(layout, plain, coded, every):
            return layout
    return None


def candidates(shape: Sequence[int], axis: int, batch: int) -> Iterator[ExampleLayout]:
    """Layouts that a tensor could have, the likely ones first."""
    axes = sorted(range(len(shape)), key=lambda each: (each != axis, each))
    for each in axes:
        if shape[each] == batch:
            yield ExampleLayout(each)
    for each in axes[:2]:
        if shape[each] > batch and shape[each] % batch == 0:
            first = axis == 1
            yield ExampleLayout(each, first)
            yield ExampleLayout(each, not first)


def labels_of(plain: Tensor, coded: Sequence[Tensor], every: Codes) -> Tensor | None:
    """The example of each element, -1 for those that are nothing; None where they are mixed."""
    if not plain.numel():
        return torch.zeros(plain.shape, dtype=torch.long, device=plain.device)
    rows = _labels_of_rows(plain, coded, every)
    if rows is not None:
        return rows
    size = plain.abs()
    labels = every.examples([_ratio(scaled, plain, size > 0) for scaled in coded])
    labels = torch.where(size > 0, labels, -1)
    mixed = (labels < 0) & (size > every.floor * size.amax())
    return None if bool(mixed.any()) else labels


def _ratio(scaled: Tensor, plain: Tensor, there: Tensor) -> Tensor:
    return torch.where(there, scaled / torch.where(there, plain, 1), 1).double()


def _labels_of_rows(plain: Tensor, coded: Sequence[Tensor], every: Codes) -> Tensor | None:
    """The same where all features along the last axis are of one example: rounding matters less."""
    if plain.dim() < 2:
        return None
    rows = plain.double()
    squares = (rows**2).sum(-1)
    ratios = [_ratio((each.double() * rows).sum(-1), squares, squares > 0) for each in coded]
    labels = every.examples(ratios)
    size = squares.sqrt()
    nothing = every.floor * size.amax()
    for scaled, factors in zip(coded, every.factors, strict=True):
        by = factors.to(plain.device)[labels.clamp(min=0)].unsqueeze(-1)
        apart = (scaled.double() / by - rows).norm(dim=-1)
        wrong = (labels < 0) | (apart > 8 * every.tolerance * size + nothing)
        if bool((wrong & (size > nothing)).any()):
            return None
    labels = torch.where(size > 0, labels, -1)
    return labels.unsqueeze(-1).expand(plain.shape)
