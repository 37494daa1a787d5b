"""Find which elements of a gradient belong to which example, by two backward passes.

In the second one, the loss of each example is multiplied by a factor of its own. A gradient that
belongs to one example alone changes by exactly that factor. Where examples are mixed, the ratio of
the two gradients is not one of the factors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence, Set

import torch
from torch import Tensor

_EXPONENTS = (-7, -5, -2, -4, -3, 4, 2, 6, 5, -6)
"""Exponents of two, such that no mean of the first few powers is near another power."""


@dataclasses.dataclass(frozen=True)
class ExampleLayout:
    """Examples along one axis, each with the same number of positions there.

    Args:
        axis: the axis.
        minor: whether the positions of an example are ``batch`` apart, as in a tensor that was
            flattened from ``[positions, batch]``, or concatenated from several batches.
    """

    axis: int
    minor: bool = False

    def spread(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return one value for each example, in a shape that broadcasts to ``shape``."""
        each = shape[self.axis] // len(values)
        if each != 1:
            values = values.repeat(each) if self.minor else values.repeat_interleave(each)
        return values.reshape(-1, *(1,) * (len(shape) - 1 - self.axis))

    def split(self, tensor: Tensor, batch: int) -> Tensor:
        """Return ``[batch, ...]``, with the positions of an example where the axis was."""
        size = tensor.shape[self.axis]
        sizes = (size // batch, batch) if self.minor else (batch, size // batch)
        return tensor.unflatten(self.axis, sizes).movedim(self.axis + self.minor, 0)


@dataclasses.dataclass(frozen=True)
class Codes:
    """The factors of the examples in each pass; together they identify every example.

    Args:
        factors: for each pass, ``[batch]`` in float64.
        powers: whether they are a few powers of two, so that rounding changes no ratio; otherwise
            each pass alone identifies every example.
        tolerance: the allowed relative error of a ratio.
        floor: elements below this share of the greatest one count as zero.
        size: what powers of two are multiplied by.
    """

    factors: tuple[Tensor, ...]
    powers: bool
    tolerance: float
    floor: float
    size: float = 1.0

    def examples(self, ratios: Sequence[Tensor]) -> Tensor:
        """Return the examples that have these ratios, -1 for none."""
        labels = torch.zeros(ratios[0].shape, dtype=torch.long, device=ratios[0].device)
        wrong = torch.zeros_like(labels, dtype=torch.bool)
        for place, (ratio, factors) in enumerate(zip(ratios, self.factors, strict=True)):
            known = _powers(self.size) if self.powers else factors
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


def _powers(size: float) -> Tensor:
    return size * torch.exp2(torch.tensor(_EXPONENTS).double())


def _nearest(known: Tensor, values: Tensor) -> Tensor:
    """Return for each value the index of the nearest known one."""
    ordered, order = known.sort()
    above = torch.searchsorted(ordered, values.contiguous()).clamp(1, max(len(known) - 1, 1))
    above = above.clamp(max=len(known) - 1)
    below = (above - 1).clamp(min=0)
    nearer = (values - ordered[below]).abs() < (ordered[above] - values).abs()
    return order[torch.where(nearer, below, above)]


def codes(
    batch: int,
    dtypes: Set[torch.dtype],
    passes: int = 1,
    *,
    powers: bool = False,
    size: float = 1.0,
) -> Codes:
    """Return factors for examples: numbers from 1 to 2 times a size, different in each pass.

    For gradients of low precision, and for large batches, they are powers of two.

    Args:
        batch: the number of examples.
        dtypes: the dtypes of the graph; the least precise one decides.
        passes: the number of passes; in two, a mean over examples cannot look like one of them by
            chance.
        powers: whether to take powers of two, multiplication by which does not round.
        size: by how much gradients of a batch of one are greater, if known. A backward pass that
            clips or rounds gradients is seen only where they are as large.
    """
    floating = {each for each in dtypes if each.is_floating_point}
    low = bool(floating - {torch.float32, torch.float64})
    exact = floating <= {torch.float64}
    if low or powers or batch > (100_000 if exact else 500):
        base = len(_EXPONENTS)
        digits = max(1, math.ceil(math.log(max(batch, 2), base) - 1e-9))
        more = math.ceil(math.log2(size)) - min(_EXPONENTS)  # a power of two does not round
        size = 1.0 if low else 2.0**more  # float16 would overflow
        numbers, known = torch.arange(batch), _powers(size)
        factors = [known[(numbers // base**each) % base] for each in range(digits)]
        return Codes(tuple(factors), True, 0.05 if low else 1e-3, 1e-2 if low else 1e-5, size)
    generator = torch.Generator().manual_seed(passes)
    factors = []
    for _ in range(passes):
        order = torch.randperm(batch, generator=generator)
        apart = 0.1 + 0.8 * torch.rand(batch, generator=generator, dtype=torch.float64)
        factors.append(size * (1 + (order + apart) / max(batch, 1)))
    return Codes(tuple(factors), False, 1e-8 if exact else 2e-5, 1e-10 if exact else 1e-5)


def fits(layout: ExampleLayout, plain: Tensor, coded: Sequence[Tensor], every: Codes) -> bool:
    """Return whether all elements have the ratios of a layout."""
    if not plain.numel():
        return True
    least = every.floor * plain.abs().amax()
    for scaled, factors in zip(coded, every.factors, strict=True):
        by = layout.spread(factors, plain.shape).to(plain.device, plain.dtype)
        for part in (slice(0, 4), slice(4, None)):  # a few rows rule out most layouts
            of = by[part] if layout.axis == 0 else by
            size = plain[part].abs()
            apart = (scaled[part] / of - plain[part]).abs()
            if not bool((apart <= every.tolerance * size + least).all()):
                return False
    return True


def layout_of(
    plain: Tensor, coded: Sequence[Tensor], every: Codes, axis: int, batch: int
) -> ExampleLayout | None:
    """Return the layout of a gradient, trying ``axis`` first; None if no layout fits."""
    for layout in candidates(plain.shape, axis, batch):
        if fits(layout, plain, coded, every):
            return layout
    return None


def candidates(shape: Sequence[int], axis: int, batch: int) -> Iterator[ExampleLayout]:
    """Yield the layouts that a tensor could have, the likely ones first."""
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
    """Return the example of each element, -1 where it is zero; None if examples are mixed."""
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
    """Return labels if the last axis has features of one example, which averages rounding."""
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
