"""Decide which batches are recorded and checked for interactions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from sawlog.errors import MixedExamplesError
from sawlog.torch._graph._autograd_graph import Edge
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._interactions._before_layers import before_layers
from sawlog.torch._interactions._check import check_interactions
from sawlog.torch._interactions._differentiable import leaves_gaps
from sawlog.torch._interactions._explained import explain_numbers
from sawlog.torch._interactions._fixed_rows import with_fixed_rows
from sawlog.torch._interactions._given_data import given_data
from sawlog.torch._interactions._lists import reporting_lists
from sawlog.torch._interactions._loss_on_tape import TapedLoss, taped_loss
from sawlog.torch._interactions._numbers import (
    Numbers,
    have_integers,
    numbers_of,
    refuse_other_numbers,
)
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._interactions._replacement import ExampleTensor
from sawlog.torch._interactions._tape import NotRepeatable, Tape
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._terms import Term
from sawlog.torch._model._constants import ModelTensors

_MOST = 16
"""How many batches of a pass are recorded at most, where graphs differ in every batch."""

_TURNS = 4
"""With how many further batches integers are compared, which may be equal by chance."""


@dataclasses.dataclass
class InteractionChecks:
    """What is known about interactions in the graphs of a pass.

    Args:
        due: whether the next batch is recorded.
        sizes: the sizes of batches that were recorded.
        recorded: how many batches were.
        refused: the structures in which examples depended on each other; every batch is recorded
            until they do not.
        checked: the structures of graphs that need no further check, each with why nothing could
            be concluded, or an empty text.
        numbers: those of a structure that are to be compared with another batch, and how many
            batches had them.
    """

    due: bool = True
    sizes: set[Hashable] = dataclasses.field(default_factory=set)
    recorded: int = 0
    refused: set[int] = dataclasses.field(default_factory=set)
    checked: dict[int, str] = dataclasses.field(default_factory=dict)
    numbers: dict[int, tuple[Numbers, int]] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def recording(self, size: Hashable) -> Iterator[Recorder | None]:
        """Record the operations inside the ``with``, if a check is due.

        Args:
            size: of the batch; graphs of batches of other sizes have other structures.
        """
        due = self.due or size not in self.sizes
        due = bool(self.refused) or (due and self.recorded < _MOST)
        if not due or torch._C._len_torch_dispatch_stack():
            yield None
            return
        self.due = False
        self.sizes.add(size)
        self.recorded += 1
        recorder = Recorder()
        try:
            with reporting_lists(recorder.read_list, recorder.read_array), recorder:
                yield recorder
        except Exception:
            self.due = True  # perhaps the batch was not checked
            raise

    def is_due(self, structure: int, recorder: Recorder | None, roots: Roots) -> bool:
        """Return whether the graph of a loss is to be checked now; if not, in the next batch.

        Losses that are infinite or NaN show nothing.
        """
        if self.is_done(structure):
            return False
        finite = recorder is not None and all(
            bool(torch.isfinite(loss).all()) for loss, _ in roots.losses
        )
        self.due = self.due or not finite
        return finite

    def is_done(self, structure: int) -> bool:
        """Return whether the graphs of a structure need no further check."""
        return structure in self.checked and structure not in self.numbers

    def check(
        self,
        structure: int,
        recorder: Recorder,
        losses: Sequence[tuple[Tensor, Tensor]],
        terms: Sequence[tuple[Term, Tensor]],
        outputs: Mapping[int | Edge, ExampleLayout],
        batch: int,
        dtypes: Set[torch.dtype],
        alive: bool,
        model: ModelTensors | None = None,
        axis: int = 0,
    ) -> None:
        """Check the graph of a batch that was recorded.

        Args:
            structure: of the graph.
            recorder: of the batch.
            losses: what the backward pass starts from, with gradients.
            terms: the terms of the loss, with gradients.
            outputs: where the examples are in outputs of layer calls and of operations.
            batch: the number of examples.
            dtypes: those of the graph.
            alive: whether every operation and every example had a gradient, so that a proof showed
                all interactions that leave one.
            model: the parameters and buffers of the model.
            axis: that of the examples in inputs of the model.

        Raises:
            MixedExamplesError: examples depend on each other.
        """
        try:
            if recorder.tape is None:
                raise NotRepeatable(recorder.problem)
            explain_numbers(recorder.tape)
            loss = taped_loss(recorder.tape, losses, terms)
            known = example_tensors(loss.tape, outputs)
            tensors = with_fixed_rows(loss.tape, known)
            if not tensors:
                raise NotRepeatable("it is not known which elements belong to which example")
            if structure not in self.checked:
                if model is not None:
                    _check_data(loss, known, model, batch, axis, dtypes)
                if not alive or leaves_gaps(loss, tensors):
                    check_interactions(loss, tensors, batch, dtypes)
            self._compare_numbers(structure, numbers_of(loss, tensors, batch, model))
        except MixedExamplesError:
            self.refused.add(structure)
            raise
        except NotRepeatable as error:
            self.checked[structure] = str(error)
        else:
            self.checked[structure] = ""
        self.refused.discard(structure)

    def _compare_numbers(self, structure: int, found: Numbers) -> None:
        """Compare Python numbers with those of another batch, now or when one follows."""
        before, turns = self.numbers.get(structure, (None, 0))
        if before is not None:
            refuse_other_numbers(before, found)
        self.numbers.pop(structure, None)
        if found and turns < (_TURNS if have_integers(found) else 1):
            self.numbers[structure] = found, turns + 1
            self.due = True


def _check_data(
    loss: TapedLoss,
    known: Sequence[ExampleTensor],
    model: ModelTensors,
    batch: int,
    axis: int,
    dtypes: Set[torch.dtype],
) -> None:
    """Check with examples replaced before the first watched layer and in labels, if possible."""
    before = before_layers(loss, known, model, batch, axis)
    if before:
        _check_with(loss, [*before, *known], batch, dtypes)
    given = given_data(loss, known, model, batch, axis)
    if given:
        there = {(each.number, each.position) for each in given}
        others = [each for each in before if (each.number, each.position) not in there]
        terms = [dataclasses.replace(each, counts=True, own=each.weighted) for each in loss.terms]
        counted = dataclasses.replace(loss, terms=tuple(terms))  # labels decide what counts
        _check_with(counted, [*given, *others, *known], batch, dtypes)


def _check_with(
    loss: TapedLoss, tensors: Sequence[ExampleTensor], batch: int, dtypes: Set[torch.dtype]
) -> None:
    ordered = sorted(tensors, key=lambda each: each.position)
    with contextlib.suppress(NotRepeatable):
        check_interactions(loss, with_fixed_rows(loss.tape, ordered), batch, dtypes)


def example_tensors(tape: Tape, outputs: Mapping[int | Edge, ExampleLayout]) -> list[ExampleTensor]:
    """Return where examples can be replaced, in the order of the tape.

    Calls of a layer without a gradient, such as those of a teacher, have their examples where other
    calls of the same layer have them, if the shapes are the same.
    """
    found = []
    alike: dict[Any, set[ExampleLayout]] = {}
    for call, layout in outputs.items():
        if isinstance(call, int) and call in tape.marks:
            alike.setdefault(tape.marks[call].kind, set()).add(layout)
    for call, mark in tape.marks.items():
        others = list(alike.get(mark.kind, ()))
        if call not in outputs and len(others) == 1:
            found.append(ExampleTensor(mark.position, mark.number, others[0]))
    for output, layout in outputs.items():
        if isinstance(output, int):
            own = tape.marks.get(output)
            where = None if own is None else (own.number, own.position)
        else:
            node, number = output
            where = tape.edges.get((node._sequence_nr(), number, node.name()))
        if where is not None and not tape.is_external(where[0]):
            found.append(ExampleTensor(where[1], where[0], layout))
    return sorted(found, key=lambda each: each.position)
