"""Run the operations of a tape again, with some values changed on the way."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._interactions._tape import (
    NotRepeatable,
    Operation,
    Ref,
    Scalar,
    Tape,
    mapped,
    tensors_in,
)

Change = Callable[[Tensor], Tensor]
"""Receives a value, and returns what the operations after it use."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """A place on the tape where a value is seen, and perhaps changed.

    Args:
        position: how many operations are before it.
        number: the value.
        change: receives it.
    """

    position: int
    number: int
    change: Change


class TapeReplay:
    """The values of a tape while it is run again.

    Args:
        tape: the tape.
        end: how many of its operations to run.
        keep: the numbers of values that are needed after the last operation.
    """

    def __init__(self, tape: Tape, end: int, keep: Sequence[int]) -> None:
        self._tape, self._end = tape, end
        self.values: dict[int, Tensor] = {}
        self.states: list[Tensor] = []
        """The states of generators after each random operation."""
        self.shapes = 0
        """A hash of the shapes of all values."""
        self._scalars: dict[int, float] = {}
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._last = _last_uses(tape, end, keep)

    def run(self, stops: Sequence[Stop] = ()) -> dict[int, Tensor]:
        """Run all operations, and return the values to keep."""
        for _ in self.steps(stops):
            pass
        return self.values

    def steps(self, stops: Sequence[Stop] = ()) -> Iterator[tuple[int, Operation, list[Tensor]]]:
        """Run the operations one by one, and yield each with what it returned."""
        before: dict[int, list[Stop]] = {}
        for stop in stops:
            before.setdefault(stop.position, []).append(stop)
        for place, operation in enumerate(self._tape.operations[: self._end]):
            self._pass(before.get(place, ()))
            found = self._call(place, operation)
            yield place, operation, found
            for number in self._last.get(place, ()):
                self.values.pop(number, None)
        self._pass(before.get(self._end, ()))

    def _pass(self, stops: Sequence[Stop]) -> None:
        for stop in stops:
            self.values[stop.number] = stop.change(self._value(stop.number))

    def _call(self, place: int, operation: Operation) -> list[Tensor]:
        args, kwargs = mapped((operation.args, operation.kwargs), self._argument)
        for generator, state in operation.seeds:
            generator.set_state(state)
        with torch.set_grad_enabled(operation.grad):
            found = operation.call(*args, **kwargs)
        self.states += [generator.get_state() for generator, _ in operation.seeds]
        if isinstance(found, (int, float)):
            self._scalars[place] = found
        tensors = tensors_in(found)
        for number, each in zip(operation.outputs, tensors, strict=True):
            self.values[number] = each
            self.shapes = hash((self.shapes, each.shape))
        return tensors

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            found = self._value(value.number)
            return found.detach() if found.requires_grad and not value.grad else found
        if isinstance(value, Scalar):
            every = {
                one.of(*(self._scalars[place] for place in (one.operation, *one.more)))
                for one in (value, *value.others)
            }
            if len(every) > 1:
                raise NotRepeatable("a number that was read twice")
            return every.pop()
        return value

    def _value(self, number: int) -> Tensor:
        found = self.values.get(number)
        if found is not None:
            return found
        external = self._tape.externals[number]
        before = external.memory.before
        if before is None:
            return external.tensor
        cdata = external.memory.alive.cdata
        if cdata not in self._copies:
            self._copies[cdata] = before.clone()
        own = external.tensor
        if own.is_conj() or own.is_neg():
            raise NotRepeatable("a conjugate view of memory that was changed")
        found = torch.empty(0, dtype=own.dtype, device=own.device)
        found.set_(self._copies[cdata], own.storage_offset(), own.size(), own.stride())
        self.values[number] = found
        return found


@contextlib.contextmanager
def replaying(tape: Tape) -> Iterator[None]:
    """Leave the random numbers of the program as they are, and run operations as recorded."""
    generators = {generator for each in tape.operations for generator, _ in each.seeds}
    states = [(generator, generator.get_state()) for generator in generators]
    devices = {each.tensor.device.type for each in tape.externals.values()} | {"cpu"}
    try:
        with contextlib.ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _last_uses(tape: Tape, end: int, keep: Sequence[int]) -> Mapping[int, Sequence[int]]:
    """Return the numbers of the values that are not needed after an operation, by its place."""
    last: dict[int, int] = {}
    for place, operation in enumerate(tape.operations[:end]):
        for number in (*operation.outputs, *operation.reads()):
            last[number] = place
    marks = [(each.number, each.position) for each in tape.marks.values()]
    for number, position in (*marks, *tape.edges.values()):
        last[number] = max(last.get(number, 0), position)
    for number in keep:
        last.pop(number, None)
    found: dict[int, list[int]] = {}
    for number, place in last.items():
        found.setdefault(place, []).append(number)
    return found
