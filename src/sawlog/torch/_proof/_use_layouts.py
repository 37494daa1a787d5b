"""The layout of the examples in the outputs of operations, found from measured gradients."""

from __future__ import annotations

from collections.abc import Sequence, Set

from torch import Tensor

from sawlog.torch._graph._autograd_graph import Node
from sawlog.torch._graph._example_layout import labels_of, layout_of
from sawlog.torch._graph._operations._dispatch import is_of_inputs
from sawlog.torch._graph._operations._example_labels import Where
from sawlog.torch._graph._operations._weight_use import WeightUse
from sawlog.torch._proof._example_axis import ExampleAxis
from sawlog.torch._proof._mixed_examples import mixed_by_use


class UseLayouts:
    """Finds the examples in gradients of operations.

    Args:
        axis: the axis of the examples, and the measured gradients.
    """

    def __init__(self, axis: ExampleAxis) -> None:
        self._axis, self._measured, self._batch = axis, axis.measured, axis.batch
        self.ordered = True
        """Whether every operation has its examples in a layout, not in an order of this batch."""

    def of(self, use: WeightUse, names: Sequence[str]) -> tuple[Where | None, ...]:
        """Return where the examples are in each output of an operation.

        Args:
            use: the operation.
            names: the parameters that it uses, for messages.

        Raises:
            CaptureError: they are mixed, or in another order than in the inputs.
        """
        plain, *coded = self._measured.of_nodes[use.number]
        found: list[Where | None] = []
        for place, grad in enumerate(plain):
            if grad is None:
                found.append(None)
                continue
            other = [each[place] for each in coded]
            if any(each is None for each in other):
                raise mixed_by_use(use, names)
            there = [each for each in other if each is not None]
            found.append(self._of_output(use, names, grad, there))
        return tuple(found)

    def _of_output(
        self, use: WeightUse, names: Sequence[str], grad: Tensor, coded: Sequence[Tensor]
    ) -> Where:
        every, axis = self._measured.codes, self._axis
        layout = layout_of(grad, coded, every, axis.axis, self._batch)
        if layout is not None:
            inputs = layout.axis != axis.axis and is_of_inputs(use)
            if inputs and axis.has_examples(grad) and self._batch > 1:
                raise axis.unclear_axis(names[0], grad)
            return layout
        labels = labels_of(grad, coded, every)
        if labels is None:
            raise mixed_by_use(use, names)
        self._check_order(use, grad, labels, names)
        self.ordered = False
        return labels

    def _check_order(
        self, use: WeightUse, grad: Tensor, labels: Tensor, names: Sequence[str]
    ) -> None:
        """Refuse inputs in another order than the loss: ids are in the order of the inputs."""
        if not is_of_inputs(use) or not self._axis.has_examples(grad):
            return
        if len(self._axis.misplaced(grad, labels)) > 1:  # only one: a table for all examples
            raise self._axis.other_order(f"{names[0]!r}, {use.node.name()}")

    def is_scattered(self, uses: Sequence[WeightUse], unsure: Set[Node]) -> bool:
        """Return whether no layout fits the gradients at some use of a parameter."""
        if self._batch == 1:
            return False
        every, axis = self._measured.codes, self._axis.axis
        for number in {use.number for use in uses if use.node not in unsure}:
            plain, *coded = self._measured.of_nodes.get(number, [()])
            for place, grad in enumerate(plain):
                there = [each[place] for each in coded]
                if grad is not None and all(each is not None for each in there):
                    known = [each for each in there if each is not None]
                    if layout_of(grad, known, every, axis, self._batch) is None:
                        return True
        return False

    def is_of_examples(self, number: int) -> bool:
        """Return whether the example of every element of the output of a node is known."""
        if number not in self._measured.of_nodes or self._batch == 1:
            return False
        plain, *coded = self._measured.of_nodes[number]
        if len(coded) < len(self._measured.codes.factors):  # not reached by every pass
            return False
        for place, grad in enumerate(plain):
            if grad is None or not bool(grad.any()):
                continue
            there = [each[place] for each in coded]
            if any(each is None for each in there):
                return False
            known = [each for each in there if each is not None]
            if labels_of(grad, known, self._measured.codes) is None:
                return False
        return any(grad is not None and bool(grad.any()) for grad in plain)
