"""Find the tensors whose examples stay in their places, whatever values other examples have.

Where values decide which rows are picked, as with tokens that are routed to an expert, the rows of
the recorded batch can look like those of all examples by chance::

    picked = (h[:, 0] > 0).nonzero()[:, 0]      # [0, 1, 2]; with other values [0, 0, 2, 2]
    expert(tokens[picked])

In a replay with other examples its rows are others, so no example can be replaced there.
"""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.torch._interactions._flow import Flow, name_of
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._tape import Operation, Ref, Tape, leaves

_BY_VALUES = {"masked_select", "nonzero", "nonzero_static", "repeat_interleave", "_unique2",
              "unique_consecutive", "unique_dim"}  # fmt: skip
"""Operations that pick rows by what their arguments contain."""

_BY_INDEX = {
    "gather": 2, "index": 1, "index_add": 2, "index_add_": 2, "index_copy": 2, "index_copy_": 2,
    "index_put": 1, "index_put_": 1, "_index_put_impl_": 1, "index_select": 2, "scatter": 2,
    "scatter_": 2, "scatter_add": 2, "scatter_add_": 2, "take": 1,
}  # fmt: skip
"""Operations that pick rows by an index, with the place of that argument."""

_BY_NUMBERS = {"narrow", "select", "slice", "split", "split_with_sizes"}
"""Operations that pick rows by Python numbers."""


def with_fixed_rows(tape: Tape, tensors: Sequence[ExampleTensor]) -> list[ExampleTensor]:
    """Return the tensors that contain no rows which values of the others have picked.

    Args:
        tape: the operations that computed them.
        tensors: those of which it is known which elements belong to which example, in the order of
            the tape.
    """
    values, decisions, picked = Flow(tape), Flow(tape), Flow(tape)
    found: list[ExampleTensor] = []
    waiting = list(reversed(tensors))
    for place in range(len(tape.operations) + 1):
        while waiting and waiting[-1].position <= place:
            tensor = waiting.pop()
            if not picked.has(tensor.number):
                found.append(tensor)
                values.add(tensor.number)
        if not waiting:
            break
        operation = tape.operations[place]
        depends = values.follow(place, operation)
        if depends and operation.decides:
            decisions.add_results(place, operation)
        if decisions.follow(place, operation) and _picks(operation, decisions):
            picked.add_results(place, operation)
        picked.follow(place, operation)
    return found


def _picks(operation: Operation, decisions: Flow) -> bool:
    """Return whether an operation that depends on decisions picks rows by them."""
    name = name_of(operation)
    if name in _BY_NUMBERS:
        return next(operation.numbers(), None) is not None
    if name in _BY_INDEX:
        index = operation.args[_BY_INDEX[name] :][:1]
        return any(isinstance(each, Ref) and decisions.has(each.number) for each in leaves(index))
    return name in _BY_VALUES
