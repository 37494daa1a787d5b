"""Where the examples of a batch are in an array, and what else is known of a traced value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Axis:
    """The examples are along dimension ``dim``, which may be merged with other dimensions.

    The size of the dimension is ``outer * examples * inner``, in this order: a batch of sequences
    ``[examples, tokens, features]`` as ``[examples * tokens, features]`` is ``Axis(0, 1, tokens)``.

    ``order`` identifies a permutation of the dimension that is known when the program runs, such as
    that of tokens which were sorted by their expert; None if they are in the order of the batch.
    """

    dim: int
    outer: int = 1
    inner: int = 1
    order: int | None = None

    def at(self, dim: int) -> Axis:
        """Return the same examples at another dimension."""
        return dataclasses.replace(self, dim=dim)

    @property
    def width(self) -> int:
        """The size of one example along the dimension."""
        return self.outer * self.inner


@dataclasses.dataclass(frozen=True)
class Split:
    """The examples are along several dimensions, as after ``x.reshape(steps, -1, features)``.

    The number of an example has a digit for each part, the most significant one first. Without
    parts the value belongs to the only example, as inside of a loop over the examples.

    Args:
        parts: Where each digit is.
        sizes: The number of values of each digit.
    """

    parts: tuple[Axis, ...]
    sizes: tuple[int, ...]

    def successive(self) -> list[tuple[Axis, int]]:
        """Return the parts and sizes, each as it is when the ones before it are taken out."""
        parts, found = list(self.parts), []
        for i, size in enumerate(self.sizes):
            own = parts[i]
            found.append((own, size))
            for j in range(i + 1, len(parts)):
                if parts[j].dim == own.dim:
                    parts[j] = _without(parts[j], own, size)
        return found


def _without(part: Axis, taken: Axis, size: int) -> Axis:
    """Return a part of a dimension from which another part is taken out."""
    if part.inner >= taken.inner * size:
        return dataclasses.replace(part, inner=part.inner // size)
    return dataclasses.replace(part, outer=part.outer // size)


def digits_of(place: Axis | Split, examples: int) -> list[tuple[Axis, int]]:
    """Return the parts of a place with their sizes."""
    if isinstance(place, Axis):
        return [(place, examples)]
    return list(zip(place.parts, place.sizes, strict=True))


def joined(digits: Sequence[tuple[Axis, int]]) -> Axis | Split:
    """Return the place of some digits; neighbours in the same dimension become one."""
    found: list[tuple[Axis, int]] = []
    for part, size in digits:
        if size == 1:
            continue
        if found:
            last, count = found[-1]
            whole = last.dim == part.dim and last.inner == size * part.inner
            if whole and part.outer == last.outer * count:
                found[-1] = (Axis(part.dim, last.outer, part.inner), count * size)
                continue
        found.append((part, size))
    if len(found) == 1 and found[0][0].order is None:
        return found[0][0]
    return Split(tuple(part for part, _ in found), tuple(size for _, size in found))


#: The place of a value that belongs to the only example.
ONE = Split((), ())


@dataclasses.dataclass(frozen=True)
class CutBatch:
    """Some of the examples of the batch, as after ``x[:3]`` of an array of examples.

    Args:
        place: Where they are, as if they were the whole batch.
        chosen: Their numbers in the batch, in the order of the array.
        where: The equation that selected them, and its source line.
    """

    place: Axis | Split
    chosen: tuple[int, ...]
    where: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Examples were combined, or it is unknown where they are.

    Args:
        why: What the equation does, such as ``"adds up the examples"``.
        where: The equation and its source line.
    """

    why: str
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Summed:
    """A sum over examples: the loss of a function that returns a declared sum or mean."""


Place = Axis | Split | CutBatch | Mixed | Summed | None
"""Where the examples are; None for a value that is the same for all examples."""


@dataclasses.dataclass(frozen=True)
class Known:
    """Integers that are known when a program is traced, such as those of an ``arange``.

    Args:
        values: The integers.
        mask: Which of them are known.
    """

    values: Any
    mask: Any

    @property
    def complete(self) -> bool:
        """Whether all values are known."""
        return bool(np.all(self.mask))


@dataclasses.dataclass(frozen=True)
class Index:
    """Integers that are a permutation of a dimension with examples, divided by a number.

    Args:
        order: The permutation, see :class:`Axis`.
        divisor: The number.
        inverse: Whether it is the inverse permutation.
    """

    order: int
    divisor: int = 1
    inverse: bool = False


@dataclasses.dataclass(frozen=True)
class State:
    """What is known of a value.

    Args:
        place: Where the examples are.
        param: Whether its gradient reaches a watched parameter.
        known: Its integers, as far as they are known.
        index: Set if its integers are a permutation.
        uniform: Dimensions along which it is known to be the same everywhere.
    """

    place: Place = None
    param: bool = False
    known: Known | None = None
    index: Index | None = None
    uniform: frozenset[int] = frozenset()


CONSTANT = State()


def merge(states: Sequence[State]) -> Place:
    """Return the place of a value that is one of several, as after a branch or an iteration."""
    found = [state.place for state in states if state.place is not None]
    if not found:
        return None
    mixed = next((place for place in found if isinstance(place, Mixed)), None)
    if mixed is not None:
        return mixed
    if any(isinstance(place, Summed) for place in found):
        if any(state.place is None and state.param for state in states):
            return Mixed("is a sum over examples in some steps or branches only")
        return Summed()
    if any(isinstance(place, CutBatch) for place in found) and any(
        state.place is None and state.param for state in states
    ):
        return Mixed("has some of the examples in some steps or branches only")
    if any(place != found[0] for place in found):
        return Mixed("has the examples along different dimensions in different steps or branches")
    return found[0]
