"""Recognise what a program computed in Python from numbers that it had read.

``h / (float(h.var()) + 1e-5) ** 0.5`` passes a number with many digits to an operation. If a short
formula of the numbers that were read gives the same digits, that is where it comes from, and a
replay computes it again.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sawlog.torch._interactions._numbers import held_before
from sawlog.torch._interactions._scalars import derived, has_many_digits
from sawlog.torch._interactions._tape import Scalar, Tape, mapped

_Formula = Callable[..., float]

_OUTER: tuple[tuple[_Formula, _Formula], ...] = (
    (lambda n: n, lambda x: x),
    (lambda n: n * n, math.sqrt),
    (lambda n: 1 / n, lambda x: 1 / x),
    (lambda n: 1 / (n * n), lambda x: 1 / math.sqrt(x)),
    (math.sqrt, lambda x: x * x),
    (math.log, math.exp),
    (math.exp, math.log),
)
"""The inverse of the last step of a formula, and that step."""

_DECAYS = (0.1, 0.01, 0.001, 0.05, 0.2, 0.3, 0.5, 0.9, 0.99, 0.999)
_CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0)
_LATEST = 16  # of the numbers that were read
_PAIRS = 6
_ROUNDING = 2.0**-48


def explain_numbers(tape: Tape) -> None:
    """Replace numbers among the arguments of operations by what they were computed from."""
    reads = [
        (place, value)
        for place, value in sorted(tape.read.items())
        if type(value) is float and value and math.isfinite(value)
    ]
    if not reads:
        return
    held = held_before(tape, reads[0][0]).numbers
    own = {number for each in held for number in derived(each)}
    known: dict[float, Scalar | None] = {}

    def explained(value: Any, before: Sequence[tuple[int, float]]) -> Any:
        if type(value) is not float or value in own or not has_many_digits(value):
            return value
        if known.get(value) is None:
            known[value] = _search(value, before, held)
        return known[value] or value

    count = 0
    for place, operation in enumerate(tape.operations):
        while count < len(reads) and reads[count][0] < place:
            count += 1
        if count:
            before = reads[:count]
            given = operation.args, operation.kwargs
            operation.args, operation.kwargs = mapped(
                given, functools.partial(explained, before=before)
            )


def _search(
    number: float, reads: Sequence[tuple[int, float]], held: frozenset[float]
) -> Scalar | None:
    """Return a formula of numbers that were read which gives another number."""
    for inverse, outer in _OUTER:
        with contextlib.suppress(ValueError, OverflowError, ZeroDivisionError):
            inner = inverse(number)
            for scalar in _inner(inner, reads, held):
                values = dict(reads)
                places = (scalar.operation, *scalar.more)
                found = outer(scalar.of(*(values[place] for place in places)))
                if abs(found - number) <= 4 * _ROUNDING * abs(number):
                    return Scalar(
                        scalar.operation,
                        lambda *x, f=outer, g=scalar.of: f(g(*x)),
                        more=scalar.more,
                    )
    return None


def _inner(
    number: float, reads: Sequence[tuple[int, float]], held: frozenset[float]
) -> Iterator[Scalar]:
    """Yield formulas that may give a number."""
    latest = list(reversed(reads))[:_LATEST]
    for place, value in latest:
        for constant in _CONSTANTS:  # a * value + constant
            a = _short((number - constant) / value, _ROUNDING)
            if a:
                yield Scalar(place, lambda x, a=a, b=constant: a * x + b)
        for sign in (1, -1):  # value + b, b - value
            b = _short(number - sign * value, _ROUNDING * abs(number / (number - sign * value)))
            if b:
                yield Scalar(place, lambda x, s=sign, b=b: s * x + b)
        for decay in _DECAYS:  # an average that moves
            rest = (number - decay * value) / (1 - decay)
            for own in _near(rest, held):
                yield Scalar(place, lambda x, d=decay, o=own: (1 - d) * o + d * x)
    for i, (one, a) in enumerate(latest[:_PAIRS]):
        for two, b in latest[:_PAIRS][i + 1 :]:
            for of, value in _pairs(a, b):
                by = _short(number / value, _ROUNDING) if value else 0.0
                if by:
                    yield Scalar(one, lambda x, y, f=of, by=by: by * f(x, y), more=(two,))
    total, places = 0.0, list[int]()
    for place, value in latest:
        total += value
        places.append(place)
        share = number / total if total else 0.0
        if len(places) < 3 or not share:
            continue
        by = _short(share, _ROUNDING)
        size = _short(1 / share, _ROUNDING)
        if by or size:
            factor = by or 1 / size
            yield Scalar(places[0], lambda *x, f=factor: f * math.fsum(x), more=tuple(places[1:]))


def _pairs(a: float, b: float) -> Iterator[tuple[_Formula, float]]:
    yield lambda x, y: x * y, a * b
    yield lambda x, y: x / y, a / b
    yield lambda x, y: y / x, b / a
    yield lambda x, y: x + y, a + b
    yield lambda x, y: x - y, a - b


def _short(value: float, rounding: float) -> float:
    """Return the decimal of three digits near a number, if rounding explains the rest; else 0."""
    if not math.isfinite(value) or not 1e-13 < abs(value) < 1e13:
        return 0.0
    found = float(f"{value:.2e}")
    return found if abs(found - value) <= 8 * min(rounding, 1e-4) * abs(value) else 0.0


def _near(value: float, held: frozenset[float]) -> Iterator[float]:
    """Yield the numbers of the program, or short ones, that a number is up to rounding."""
    short = _short(value, _ROUNDING)
    if short:
        yield short
    for own in held:
        if own and abs(own - value) <= 8 * _ROUNDING * abs(own):
            yield own
