"""Python numbers that change from batch to batch after values of examples were read.

``h / (float(h.var()) + 1e-5) ** 0.5`` computes a number outside of PyTorch. That it comes from the
batch shows in the next one, where it is another. Numbers that were read from labels do not count,
nor do counts that terms of the loss are divided by, which its graph shows, nor numbers that
the program had before it read anything, as those of a schedule.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
from collections.abc import Iterator, Sequence
from typing import Any

from sawlog.errors import MixedExamplesError
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._interactions._flow import Flow, name_of, needed
from sawlog.torch._interactions._frames import Held
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._scalars import derived, has_many_digits
from sawlog.torch._interactions._tape import Operation, Tape
from sawlog.torch._model._constants import ModelTensors

_ROUNDING = 1e-9
_SMALL = 2  # integers up to here are most often constants of the program

Numbers = tuple[tuple[str, tuple[str, int], tuple[float, ...]], ...]
"""The names, lines and numbers of operations, in their order."""


def numbers_of(
    loss: TapedLoss,
    tensors: Sequence[ExampleTensor],
    batch: int = 0,
    model: ModelTensors | None = None,
) -> Numbers:
    """Return the numbers that a program may have computed from values of examples.

    Args:
        loss: the loss, and the operations that computed it.
        tensors: those of which it is known which elements belong to which example.
        batch: the number of examples.
        model: the parameters and buffers of the model.
    """
    tape, flow, reads, reals = loss.tape, Flow(loss.tape), False, False
    wanted, scaling = (
        needed(loss, [term.number for term in loss.terms])[0],
        needed(loss, loss.roots)[0],
    )
    ordered = sorted(tensors, key=lambda each: each.position, reverse=True)
    arrays = list(reversed(tape.arrays))
    known: set[float] = set()
    made: _Made | None = None
    found = []
    for place, operation in enumerate(tape.operations[: loss.end]):
        while ordered and ordered[-1].position <= place:
            flow.add(ordered.pop().number)
        while arrays and arrays[-1][0] <= place:
            if flow.has(arrays[-1][1]):
                if not reads:
                    known.update(_earlier(tape, arrays[-1][0]))
                made = _Made(tape, arrays[-1][0], batch, model) if made is None else made
            reads = reals = flow.has(arrays.pop()[1]) or reads
        own = [each for each in _numbers(operation) if each not in known] if reads else []
        own += made.numbers(operation) if made is not None else []
        if place not in wanted:  # between the terms and the loss
            own = [each for each in own if reals and place in scaling and not _is_count(each)]
        if own:
            found.append((name_of(operation), operation.line, tuple(own)))
        value = tape.read.get(place)
        if flow.follow(place, operation):
            if not reads and (value is not None or place in tape.sized):
                known.update(_earlier(tape, place))
                reads = True
            reals = reals or type(value) is float
        elif value:
            known.update((value, -value, 1 / value))
    return tuple(found)


def _earlier(tape: Tape, place: int) -> Iterator[float]:
    """Yield the numbers that a program had before an operation, and what it may compute of them.

    They are those before it read any real number, which may be one of its inputs.
    Simple ones are left out, since a count of the batch may be the same.
    """
    for number in filter(has_many_digits, held_before(tape, place).numbers):
        yield from derived(number)


def held_before(tape: Tape, place: int) -> Held:
    """Return what a program held before it read the first real number."""
    arrays = {before for before, _ in tape.arrays}
    for before, held in tape.held:
        if before == place or before in arrays or type(tape.read.get(before)) is float:
            return held
    return Held(frozenset(), frozenset())


class _Made:
    """Tensors that a program may have made of arrays with values of the examples.

    They were not there before the arrays were, and have no axis for the examples.
    """

    def __init__(self, tape: Tape, place: int, batch: int, model: ModelTensors | None) -> None:
        self._tape, self._batch = tape, batch
        self._others: set[int | None] = {*held_before(tape, place).memories, *tape.arguments}
        self._others |= set() if model is None else model.memories()
        early = itertools.chain(*(each.reads() for each in tape.operations[:place]))
        self._seen = set(early)

    def numbers(self, operation: Operation) -> list[float]:
        """Return the mean and the norm of each of them that an operation is the first to use."""
        found: list[float] = []
        for number in operation.reads():
            external = self._tape.externals.get(number)
            if external is None or number in self._seen:
                continue
            self._seen.add(number)
            value = external.tensor
            if not value.is_floating_point() or memory_of(value) in self._others:
                continue
            if not value.numel() or any(size % self._batch == 0 for size in value.shape):
                continue
            found += [float(value.double().mean()), float(value.double().norm())]
        return found


def have_integers(numbers: Numbers) -> bool:
    """Return whether some of them are integers, so that two batches may have the same by chance."""
    every = [each for *_, own in numbers for each in own if math.isfinite(each)]
    return any(each == int(each) and abs(each) > _SMALL for each in every)


def refuse_other_numbers(before: Numbers, now: Numbers) -> None:
    """Raise an error if the numbers of two batches of one structure differ.

    Raises:
        MixedExamplesError: they do.
    """
    if [each[:2] for each in before] != [each[:2] for each in now]:
        return  # other operations, which show nothing
    for (name, (file, line), one), (_, _, two) in zip(before, now, strict=True):
        if len(one) != len(two):
            continue
        for a, b in zip(one, two, strict=True):
            if a == b or (a != a and b != b):
                continue
            code = linecache.getline(file, line).strip() if file else ""
            where = (f" of {file}:{line}" if file else "") + (f", `{code}`" if code else "")
            raise MixedExamplesError(
                "A Python number, or an array of numpy, differs from batch to batch: "
                f"{a:.6g} and {b:.6g} in {name!r}{where}. Values of the examples were read "
                "before, so it was probably computed from all of them, and then they have no "
                "gradients of their own; rows of earlier batches of this pass are not right "
                "either. Hint: compute it for each example by itself, or once before the batches; "
                "if it does not depend on the batch, as in a schedule, compute it before anything "
                "is read, or make it a tensor: torch.tensor(number)."
            )


def _is_count(value: float) -> bool:
    """Return whether a number or its inverse is an integer."""
    inverse = 1 / value if value else 0.0
    return (
        not math.isfinite(inverse)
        or value == int(value)
        or abs(inverse - round(inverse)) < _ROUNDING
    )


def _numbers(operation: Operation) -> Iterator[float]:
    """Yield the numbers that an operation computes with; sizes, axes and modes are none."""
    for place, name in _places_of_numbers(operation.call):
        args = operation.args
        value = args[place] if place < len(args) else operation.kwargs.get(name)
        if type(value) is float or type(value) is int:
            yield value


@functools.cache
def _places_of_numbers(call: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, each.name)
        for place, each in enumerate(call._schema.arguments)
        if _kind(each.real_type) in ("TensorType", "NumberType", "FloatType")
    )


def _kind(of: Any) -> str:
    inside = of.getElementType() if hasattr(of, "getElementType") else of
    return str(inside.kind())
