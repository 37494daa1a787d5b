"""Follow values along a tape, by their memory.

A value depends on another if an operation read it, or changed memory that both are in. Where that
is unclear, a value counts as dependent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._tape import Operation, Ref, Tape, leaves

_SHAPES = {
    "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
}  # fmt: skip
"""Operations whose results do not depend on the values of their arguments."""

MOVES = {
    "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "clone", "expand", "permute", "select",
    "slice", "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip
"""Operations that only move or convert values."""

PRODUCTS = {"addmm", "baddbmm", "bmm", "convolution", "mm"}
"""Products; with a trained weight, the gradient shows where the examples are."""


class Flow:
    """The values of a tape that depend on some of them."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._memories: set[int] = set()
        self._operations: set[int] = set()

    def add(self, number: int) -> None:
        """Add a value; all that share its memory depend on it."""
        self._memories.add(self._tape.memory_id(number))

    def has(self, number: int) -> bool:
        """Return whether a value depends on those that were added."""
        return self._tape.memory_id(number) in self._memories

    def follow(self, place: int, operation: Operation) -> bool:
        """Follow the next operation of the tape; return whether it depends on added values."""
        if name_of(operation) in _SHAPES:
            return False
        reads = any(self.has(number) for number in operation.reads())
        if not reads and self._operations.isdisjoint(operation.numbers()):
            return False
        self.add_results(place, operation)
        return True

    def add_results(self, place: int, operation: Operation) -> None:
        """Add what an operation returns or changes."""
        self._operations.add(place)
        for number in (*operation.outputs, *operation.writes()):
            self.add(number)


def name_of(operation: Operation) -> str:
    """Return the name of an operation, without that of the overload."""
    return str(operation.call.overloadpacket.__name__)


def depends_on_values(operation: Operation) -> bool:
    """Return whether an operation reads the values of tensors."""
    return name_of(operation) not in _SHAPES and next(operation.reads(), None) is not None


def needed(
    loss: TapedLoss, values: Iterable[int], *, scales: bool = True
) -> tuple[set[int], set[int]]:
    """Return the places of the operations that values may depend on, and all these values.

    Args:
        loss: the loss, and the operations that computed it.
        values: the values.
        scales: whether to include constants that a number was multiplied with or divided by, such
            as a count that makes a sum a mean.
    """
    numbers, found = set(values), set[int]()
    for place in range(loss.end - 1, -1, -1):
        operation: Operation = loss.tape.operations[place]
        if operation.call._schema.is_mutable:
            numbers.update(operation.outputs)
        if place in found or not numbers.isdisjoint(operation.outputs):
            found.add(place)
            if scales or not _scales_a_number(operation, loss.tape):
                numbers.update(operation.reads())
            else:
                numbers.update(each.number for each in _refs(operation) if each.grad)
            for read in operation.numbers():
                found.add(read)
    return found, numbers


def _scales_a_number(operation: Operation, tape: Tape) -> bool:
    """Return whether an operation multiplies or divides a number that has a gradient."""
    if name_of(operation) not in ("div", "mul", "div_", "mul_"):
        return False
    alone = all(not tape.shapes[number] for number in operation.outputs)
    return alone and any(each.grad for each in _refs(operation))


def _refs(operation: Operation) -> Iterator[Ref]:
    for each in leaves((operation.args, operation.kwargs)):
        if isinstance(each, Ref):
            yield each
