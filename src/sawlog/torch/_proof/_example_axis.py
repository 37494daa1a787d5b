"""The axis of the examples in the outputs of layers, found from measured gradients.

The examples of the loss are known by the size of an axis, and another axis may have the same size:
with as many positions as examples, positions look like examples. So what the inputs of the model
show is compared with what the loss shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._example_layout import (
    ExampleLayout,
    candidates,
    fits,
    labels_of,
    layout_of,
)
from sawlog.torch._graph._operations._example_labels import labels_along
from sawlog.torch._proof._measured_gradients import MeasuredGradients
from sawlog.torch._proof._mixed_examples import mixed_in_example

_RIGHT = 5e-4  # how much others may change the gradient of an example, relative
_NOTHING = 1e-9  # of the greatest gradient: rounding


class ExampleAxis:
    """Finds the examples in gradients of layer outputs.

    Args:
        measured: the gradients.
        batch: the number of examples.
        axis: the axis on which inputs of the model have their examples.
    """

    def __init__(self, measured: MeasuredGradients, batch: int, axis: int) -> None:
        self.measured, self.batch, self.axis = measured, batch, axis
        self.unique = True
        """Whether every layout was the only one that fits, so that it holds for other batches."""
        self.unsure: set[int] = set()
        """The numbers of calls with several layouts that fit."""

    def layouts(self) -> dict[int, ExampleLayout]:
        """Return the layouts of the outputs of calls, by number, where one fits."""
        found = {}
        every, batch, axis = self.measured.codes, self.batch, self.axis
        for number, (plain, *coded) in self.measured.of_calls.items():
            layout = layout_of(plain, coded, every, axis, batch)
            if layout is None:
                continue
            found[number] = layout
            if not self.is_only(layout, plain, coded):
                self.unsure.add(number)
                self.unique = self.unique and batch == 1
        return found

    def is_only(self, layout: ExampleLayout, plain: Tensor, coded: Sequence[Tensor]) -> bool:
        """Return whether no other layout fits a gradient."""
        return not any(
            fits(each, plain, coded, self.measured.codes)
            for each in candidates(plain.shape, self.axis, self.batch)
            if each != layout
        )

    def check(self, layouts: Mapping[int, ExampleLayout]) -> None:
        """Check that the inputs of the model and the loss have the same examples.

        Raises:
            CaptureError: they are along different axes, or in a different order.
        """
        if self.batch == 1:
            return
        for number, (plain, *coded) in self.measured.of_calls.items():
            call = self.measured.calls[number]
            if not call.of_inputs or not self.has_examples(plain):
                continue
            name, layout = call.unit.name or type(call.unit.module).__name__, layouts.get(number)
            if layout is not None and layout.axis != self.axis:
                raise self.unclear_axis(name, plain)
            if layout is None:
                others = self.misplaced(plain, labels_of(plain, coded, self.measured.codes))
                if len(others) > 1:
                    raise self.other_order(repr(name))
                if others:
                    raise self.unclear_axis(name, plain)

    def check_each(self, layouts: Mapping[int, ExampleLayout]) -> None:
        """Check the gradients of each example by itself, where a small term mixes examples.

        Raises:
            MixedExamplesError: the gradient of an example does not change by its factor alone.
        """
        every = self.measured.codes
        for number, layout in layouts.items():
            plain, *coded = self.measured.of_calls[number]
            rows = layout.split(plain, self.batch).flatten(1).double()
            size = rows.norm(dim=1)
            allowed = max(_RIGHT, every.tolerance) * size + _NOTHING * size.amax()
            for scaled, factors in zip(coded, every.factors, strict=True):
                own = layout.split(scaled, self.batch).flatten(1).double()
                apart = (own / factors.to(own.device)[:, None] - rows).norm(dim=1)
                if bool((apart > allowed).any()):
                    unit = self.measured.calls[number].unit
                    raise mixed_in_example(unit.name or type(unit.module).__name__)

    def has_examples(self, grad: Tensor) -> bool:
        """Return whether a gradient at the inputs has the examples on the expected axis."""
        inside = grad.dim() > self.axis + 1  # the last axis has features
        return inside and grad.shape[self.axis] == self.batch

    def misplaced(self, grad: Tensor, labels: Tensor | None) -> set[int]:
        """Return the examples of a gradient, if some are not in their places on the axis."""
        if labels is None:
            return set()
        order = labels_along(labels, grad, (self.axis,), self.batch)
        right = torch.arange(self.batch, device=labels.device)
        if order is None:  # what is of one example at the inputs is in the losses of several
            order = labels
            right = ExampleLayout(self.axis).spread(right, grad.shape)
        there = order >= 0
        wrong = bool((there & (order != right)).any())
        return set(order[there].tolist()) if wrong else set()

    def unclear_axis(self, name: str, grad: Tensor) -> CaptureError:
        """Return the error for examples that the loss has on another axis."""
        return CaptureError(
            f"The layer {name!r} has the inputs of the model, and {self.batch} examples along "
            f"axis {self.axis} of its output {tuple(grad.shape)}; in the loss, the examples seem "
            "to be along another axis, which is as long. Probably there are as many positions as "
            "examples, and the loss has positions first; or one element of it joins several "
            "examples (losses.cumsum(0)[-1]). Hint: another batch size, or another length; or put "
            "the axis of the examples first in the loss; watch(model, batch_axis=1) if inputs have "
            "positions first; or take the sum or mean of the losses."
        )

    def other_order(self, where: str) -> CaptureError:
        """Return the error for examples that the loss has in another order."""
        return CaptureError(
            f"At the inputs of the model ({where}) the examples are in another order than in the "
            "loss, so it is not clear which gradient belongs to which id. Probably they are sorted "
            "or packed inside the model, and so are the labels; or parts of an example are "
            "exchanged with those of others. Hint: sort inputs, labels and ids before the batch; "
            "or return the outputs of the model in the order of its inputs."
        )
