"""Examples before the first watched layer: in inputs of the model, and in layers that are frozen.

No gradient shows where examples are there. They are taken to be along the axis of the batch, where
no other axis is as long and a value is not made of parameters and constants alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._interactions._flow import MOVES, PRODUCTS, Flow, name_of, needed
from sawlog.torch._interactions._kept_apart import KeptApart
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._origins import Origins
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._tape import Mark, Operation, Ref, leaves
from sawlog.torch._model._constants import ModelTensors


def before_layers(
    loss: TapedLoss, known: Sequence[ExampleTensor], model: ModelTensors, batch: int, axis: int
) -> list[ExampleTensor]:
    """Return where examples are before the tensors of which it is known.

    Args:
        loss: the loss, and the operations that computed it.
        known: those of which it is known, in the order of the tape.
        model: the parameters and buffers of the model.
        batch: the number of examples.
        axis: the axis of the examples in inputs of the model.

    Returns:
        An empty list if their values only reach trained layers, where the gradient shows all.
    """
    tape = loss.tape
    there = [each for each in tape.before if _has_examples(each, batch, axis)]
    if not there:
        return []
    origins = Origins(tape, model, batch)
    flow, covered, wanted = (
        Flow(tape),
        Flow(tape),
        needed(loss, [term.number for term in loss.terms])[0],
    )
    found: list[ExampleTensor] = []
    apart, open_ = KeptApart(tape, batch), False
    later, marks = list(reversed(known)), list(reversed(there))
    for place in range(loss.end + 1):
        while later and later[-1].position <= place:
            covered.add(later.pop().number)
        while marks and marks[-1].position <= place:
            mark = marks.pop()
            dependent = flow.has(mark.number) or covered.has(mark.number)
            if not dependent and not origins.is_once_for_all(mark.number):
                given = tape.is_external(mark.number)
                layout = ExampleLayout(axis)
                found.append(ExampleTensor(mark.position, mark.number, layout, given))
                flow.add(mark.number)
                apart.add(mark.number, axis)
        if place == loss.end:
            break
        operation = tape.operations[place]
        covered.follow(place, operation)
        kept = apart.follow(operation, flow, covered)
        before = place in wanted and not kept and _is_open(operation, flow, covered)
        if flow.follow(place, operation) and before:
            open_ = True
    return found if open_ else []


def _has_examples(mark: Mark, batch: int, axis: int) -> bool:
    shape = mark.kind[1]
    return len(shape) > 1 and [i for i, size in enumerate(shape) if size == batch] == [axis]


def _is_open(operation: Operation, flow: Flow, covered: Flow) -> bool:
    """Return whether an operation may join examples in a way that no gradient shows.

    What is computed from the outputs of watched layers is checked from there on.
    """
    every = [each for each in leaves((operation.args, operation.kwargs)) if isinstance(each, Ref)]
    if not any(flow.has(each.number) and not covered.has(each.number) for each in every):
        return False
    if name_of(operation) in MOVES:
        return False
    trained = operation.grad and any(each.grad for each in every)
    return not (trained and name_of(operation) in PRODUCTS)
