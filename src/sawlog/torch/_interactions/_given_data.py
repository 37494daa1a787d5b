"""Data of the examples that a program was given: inputs before they reach the model, and labels.

``x - x.mean(0)`` in front of the model, or ``targets / targets.std()``, joins the examples as well.
No gradient shows where the examples of such tensors are. One belongs to the examples if only one
of its axes is as long as the batch, and it meets values of the examples there: it becomes the
input of the model or of a layer, or is combined with an output element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._interactions._flow import MOVES, PRODUCTS, Flow, name_of, needed
from sawlog.torch._interactions._kept_apart import KeptApart
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._tape import Operation, Ref, Tape, leaves
from sawlog.torch._model._constants import ModelTensors

_LOSSES = {
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "gather", "huber_loss", "index",
    "mse_loss", "multi_margin_loss", "multilabel_margin_loss_forward", "nll_loss2d_forward",
    "nll_loss_forward", "smooth_l1_loss", "soft_margin_loss",
}  # fmt: skip
"""Operations that compare the rows of their first two arguments, besides elementwise ones."""

_APART = {
    "constant_pad_nd", "copy_", "embedding", "gather", "lift_fresh", "masked_fill", "masked_fill_",
    "nll_loss2d_forward", "nll_loss_forward",
}  # fmt: skip
"""Operations that keep examples apart, besides elementwise ones and those that move values."""

_PICKS = {"index", "masked_select", "nonzero"}
"""Operations that take the rows where a mask is true."""

_PARTS = {"select", "slice"}
"""Operations that take a part of a tensor, perhaps one of its examples."""


def given_data(
    loss: TapedLoss, known: Sequence[ExampleTensor], model: ModelTensors, batch: int, axis: int
) -> list[ExampleTensor]:
    """Return the tensors with data of the examples, which existed before the batch.

    Args:
        loss: the loss, and the operations that computed it.
        known: the tensors of which it is known which elements belong to which example.
        model: the parameters and buffers of the model.
        batch: the number of examples.
        axis: the axis of the examples in inputs of the model.

    Returns:
        An empty list if nothing that could join them is computed from their values, or if their
        values decide in which order examples are in the loss: other ones cannot be compared.
    """
    tape, own = loss.tape, model.memories() - loss.tape.arguments
    if any(name_of(each) == "_pack_padded_sequence" for each in tape.operations):
        return []  # other lengths would put the examples in another order
    open_ = [
        number
        for number, external in tape.externals.items()
        if _is_along(external.tensor.shape, batch, axis)
        and memory_of(external.tensor) not in own
        and external.memory.before is None
    ]
    found = _confirmed(loss, open_, known, batch, axis)
    if not found or not _are_joined(loss, found, known, batch, axis) or _picks_rows(loss, found):
        return []
    return [ExampleTensor(0, number, ExampleLayout(axis), given=True) for number in sorted(found)]


def _is_along(shape: Sequence[int], batch: int, axis: int) -> bool:
    return [i for i, size in enumerate(shape) if size == batch] == [axis]


def _confirmed(
    loss: TapedLoss, given: Sequence[int], known: Sequence[ExampleTensor], batch: int, axis: int
) -> set[int]:
    """Return those of the given tensors that meet values of the examples."""
    tape = loss.tape
    sources: dict[int, set[int]] = {number: {number} for number in given}
    inputs = {mark.number for mark in tape.before}
    layers = {each.number for each in known if each.layout == ExampleLayout(axis)}
    found = {
        number
        for number in given
        if (memory_of(tape.externals[number].tensor) in tape.arguments or number in inputs)
        and tape.externals[number].tensor.dim() > 1
    }
    flow, waiting = Flow(tape), sorted(known, key=lambda each: each.position, reverse=True)
    for place, operation in enumerate(tape.operations[: loss.end]):
        while waiting and waiting[-1].position <= place:
            flow.add(waiting.pop().number)
        rows = [
            each.number
            for each in _compared(operation)
            if _is_along(tape.shapes[each.number], batch, axis)
        ]
        meets = any(flow.has(number) for number in rows) or not layers.isdisjoint(operation.outputs)
        own = {source for number in rows for source in sources.get(number, ())}
        if meets:
            found |= own
        flow.follow(place, operation)
        read = {source for number in operation.reads() for source in sources.get(number, ())}
        for number in operation.outputs:
            if read and _is_along(tape.shapes[number], batch, axis):
                sources[number] = read
                found |= read if number in inputs and len(tape.shapes[number]) > 1 else set()
    return found


def _compared(operation: Operation) -> list[Ref]:
    """Return the arguments of an operation that it combines row by row."""
    by_element = torch.Tag.pointwise in operation.call.tags
    if not by_element and name_of(operation) not in _LOSSES | PRODUCTS:
        return []
    args = operation.args if by_element else operation.args[:2]
    if name_of(operation) in PRODUCTS:
        args = operation.args
    return [each for each in leaves(args) if isinstance(each, Ref)]


def _are_joined(
    loss: TapedLoss, given: set[int], known: Sequence[ExampleTensor], batch: int, axis: int
) -> bool:
    """Return whether an operation could join rows of the given tensors on the way to the loss.

    What is computed from the outputs of watched layers is checked from there on.
    """
    flow, covered, apart = Flow(loss.tape), Flow(loss.tape), KeptApart(loss.tape, batch)
    for number in given:
        flow.add(number)
        apart.add(number, axis)
    wanted = needed(loss, loss.roots, scales=False)[0]
    waiting = sorted(known, key=lambda each: each.position, reverse=True)
    for place, operation in enumerate(loss.tape.operations[: loss.end]):
        while waiting and waiting[-1].position <= place:
            covered.add(waiting.pop().number)
        own = [number for number in operation.reads() if flow.has(number)]
        before_layers = any(not covered.has(number) for number in own)
        kept = apart.follow(operation, flow, covered) or _keeps_apart(operation, loss.tape, axis)
        if place in wanted and before_layers and not kept:
            return True
        flow.follow(place, operation)
        covered.follow(place, operation)
    return False


def _picks_rows(loss: TapedLoss, given: set[int]) -> bool:
    """Return whether the values decide which rows the program picks, by a mask or by a search."""
    tape, flow = loss.tape, Flow(loss.tape)
    for number in given:
        flow.add(number)
    for place, operation in enumerate(tape.operations[: loss.end]):
        picks = place in tape.sized and name_of(operation) in _PICKS
        if flow.follow(place, operation) and picks:
            return True
    return False


def _keeps_apart(operation: Operation, tape: Tape, axis: int) -> bool:
    """Return whether no row of the result depends on several rows of what an operation takes."""
    name = name_of(operation)
    moves = name in MOVES and name not in _PARTS
    if torch.Tag.pointwise in operation.call.tags or moves or name in _APART:
        return True
    every = [each for each in leaves((operation.args, operation.kwargs)) if isinstance(each, Ref)]
    if name in PRODUCTS and operation.grad and any(each.grad for each in every):
        return True
    dims = _dims(operation)
    size = len(tape.shapes[every[0].number]) if every else 0
    return bool(dims) and all(dim % size != axis for dim in dims) if size else False


def _dims(operation: Operation) -> list[int]:
    """Return the axes that an operation works along; none if it does not say."""
    for place, each in enumerate(operation.call._schema.arguments):
        if each.name == "dim":
            args = operation.args
            value = args[place] if place < len(args) else operation.kwargs.get("dim", 0)
            return [dim for dim in leaves(value) if type(dim) is int]
    return []
