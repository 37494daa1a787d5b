"""Python numbers that a program computed from the value of a tensor.

``h / h.std().item()`` passes a number to an operation. It is recognised by its value: a number of
many digits is not there by chance.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

import torch

from sawlog.torch._interactions._tape import Scalar

_DERIVED: tuple[Callable[[float], float], ...] = (
    lambda x: x,
    lambda x: -x,
    lambda x: 1 - x,
    lambda x: 1 + x,
    lambda x: x - 1,
    lambda x: 1 / x,
    lambda x: -1 / x,
    lambda x: x * x,
    lambda x: math.sqrt(x),
    lambda x: 1 / math.sqrt(x),
    lambda x: math.exp(x),
    lambda x: math.log(x),
    lambda x: x + 1e-5,
    lambda x: x + 1e-6,
    lambda x: x + 1e-8,
    lambda x: x + 1e-12,
)
_SAME, _NEGATIVE = _DERIVED[:2]
_MOST = 8  # of readings of one number
_LEAST = 2  # smaller sizes are most often constants of the program
_DIGITS = 2**12  # simpler numbers may be constants of the program


class Scalars:
    """Recognises numbers that were read from tensors."""

    def __init__(self) -> None:
        self._known: dict[float, Scalar] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, operation: int, value: object) -> None:
        """Remember a number that an operation read."""
        if type(value) is not float or not has_many_digits(value):
            return
        for of, found in _computed(value):
            self._known[found] = Scalar(operation, of)

    def of(self, value: float) -> float | Scalar:
        """Return where a number comes from; the number itself if that is unknown."""
        return self._known.get(value, value) if self._known else value

    def of_elements(self, values: list[float], dtype: torch.dtype) -> list[float | Scalar]:
        """Return where the elements of a tensor come from, which may have been rounded."""
        rounded = torch.tensor(list(self._known), dtype=torch.float64).to(dtype).tolist()
        known = dict(zip(rounded, self._known.values(), strict=True))
        return [known.get(each, each) for each in values]


def derived(value: float) -> Iterator[float]:
    """Yield what a program may compute of a number."""
    return (found for _, found in _computed(value))


def _computed(value: float) -> Iterator[tuple[Callable[[float], float], float]]:
    for of in _DERIVED:
        with contextlib.suppress(ValueError, OverflowError, ZeroDivisionError):
            yield of, of(value)


class Integers:
    """Recognises sizes that were read from tensors."""

    def __init__(self, known: Mapping[int, Scalar] | None = None) -> None:
        self._known = dict(known or {})

    def __bool__(self) -> bool:
        return bool(self._known)

    def copy(self) -> Integers:
        """Return a copy."""
        return Integers(self._known)

    def add(self, operation: int, value: object) -> None:
        """Remember a number that an operation read."""
        if type(value) is not int or abs(value) < _LEAST:
            return
        found = (value, _SAME), (-value, _NEGATIVE)
        for number, of in found:
            before = self._known.get(number)
            others = () if before is None else (before, *before.others)
            self._known[number] = Scalar(operation, of, others[:_MOST])

    def of(self, value: int) -> int | Scalar:
        """Return where a size comes from; the size itself if that is unknown."""
        return self._known.get(value, value)


def has_many_digits(value: float) -> bool:
    """Return whether a number is not there by chance."""
    if not math.isfinite(value):
        return False
    return not (math.frexp(value)[0] * _DIGITS).is_integer()
