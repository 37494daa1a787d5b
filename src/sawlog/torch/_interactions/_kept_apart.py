"""Operations that keep examples apart by their definition, so that no replay is needed.

Whatever the values are, each element of the result depends on elements of one example only:
elementwise operations, normalization and reductions over other axes, lookups and views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sawlog.torch._interactions._flow import Flow, name_of
from sawlog.torch._interactions._tape import Operation, Ref, Scalar, Tape, leaves

Shape = Sequence[int]


class KeptApart:
    """Follows the axis of the examples from inputs, as long as they are kept apart.

    Args:
        tape: the operations.
        batch: the number of examples.
    """

    def __init__(self, tape: Tape, batch: int) -> None:
        self._tape, self._batch = tape, batch
        self._axes: dict[int, int] = {}

    def add(self, number: int, axis: int) -> None:
        """Add a value of which the axis is known."""
        self._axes[number] = axis

    def follow(self, operation: Operation, flow: Flow, covered: Flow) -> bool:
        """Follow the next operation; return whether it keeps examples apart by its definition.

        Args:
            operation: the operation.
            flow: the values that depend on inputs.
            covered: those that depend on outputs of watched layers.
        """
        every = list(leaves((operation.args, operation.kwargs)))
        if operation.call._schema.is_mutable or any(isinstance(each, Scalar) for each in every):
            return False
        refs = [each for each in every if isinstance(each, Ref)]
        others = [each for each in refs if covered.has(each.number)]
        own = [each.number for each in refs if flow.has(each.number) and each not in others]
        if not own or not self._axes.keys() >= {*own}:
            return False
        axis = self._axis_after(operation, own, others)
        shapes = [self._tape.shapes[number] for number in operation.outputs]
        if axis is None or not all(len(s) > axis and s[axis] == self._batch for s in shapes):
            return False
        self._axes.update(dict.fromkeys(operation.outputs, axis))
        return True

    def _axis_after(
        self, operation: Operation, own: Sequence[int], others: Sequence[Ref]
    ) -> int | None:
        shape = self._tape.shapes[operation.outputs[0]] if operation.outputs else ()
        if torch.Tag.pointwise in operation.call.tags:
            # Where a value has a gradient, the proof shows to which example each element belongs.
            proven = operation.grad and all(
                each.grad and self._tape.shapes[each.number] == shape for each in others
            )
            places = {len(self._tape.shapes[number]) - self._axes[number] for number in own}
            return (
                len(shape) - places.pop() if len(places) == 1 and (proven or not others) else None
            )
        name, first = _RULES.get(name_of(operation), ("", None))
        given = _argument(operation, name) if first else None
        if first is None or others or len(own) > 1 or getattr(given, "number", None) != own[0]:
            return None
        return first(operation, self._axes[own[0]], self._tape.shapes[own[0]], shape)


def _argument(operation: Operation, name: str) -> Any:
    """Return an argument by its name."""
    for place, each in enumerate(operation.call._schema.arguments):
        if each.name == name:
            if place < len(operation.args):
                return operation.args[place]
            return operation.kwargs.get(
                name, each.default_value if each.has_default_value() else None
            )
    return None


def _axes_of(value: Any, dims: int) -> set[int]:
    given = value if isinstance(value, (list, tuple)) else range(dims) if value is None else [value]
    return {each % dims for each in given}


Rule = Callable[[Operation, int, Shape, Shape], "int | None"]
"""Receives the axis, and the shapes before and after; returns the axis after, if all is well."""


def _same(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    return axis


def _from_the_right(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    return axis + len(after) - len(before)


def _reshaped(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    return axis if tuple(before[: axis + 1]) == tuple(after[: axis + 1]) else None


def _normalized(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    over = len(_argument(operation, "normalized_shape"))
    return axis if axis < len(before) - over else None


def _along_another(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    return None if axis in _axes_of(_argument(operation, "dim"), len(before)) else axis


def _removed(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    """Return the axis after others were removed, or kept with the size 1."""
    over = _axes_of(_argument(operation, "dim"), len(before))
    if axis in over:
        return None
    return axis if len(after) == len(before) else axis - sum(each < axis for each in over)


def _inserted(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    (place,) = _axes_of(_argument(operation, "dim"), len(after))
    return axis + (place <= axis)


def _permuted(operation: Operation, axis: int, before: Shape, after: Shape) -> int | None:
    order = list(range(len(before)))
    if name_of(operation) == "permute":
        order = [each % len(before) for each in _argument(operation, "dims")]
    else:
        names = ("dim0", "dim1") if name_of(operation) == "transpose" else ()
        one, two = (
            (_argument(operation, each) % len(before) for each in names) if names else (0, -1)
        )
        order[one], order[two] = order[two], order[one]
    return order.index(axis)


_RULES: dict[str, tuple[str, Rule]] = {
    **dict.fromkeys(("_to_copy", "alias", "clone", "detach"), ("self", _same)),
    "native_dropout": ("input", _same),
    "embedding": ("indices", _same),
    "expand": ("self", _from_the_right),
    **dict.fromkeys(("_reshape_alias", "_unsafe_view", "view"), ("self", _reshaped)),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), ("input", _normalized)),
    **dict.fromkeys(("_log_softmax", "_softmax", "cumsum"), ("self", _along_another)),
    **dict.fromkeys(("slice", "split", "split_with_sizes"), ("self", _along_another)),
    **dict.fromkeys(("amax", "amin", "mean", "sum", "var"), ("self", _removed)),
    **dict.fromkeys(("select", "squeeze"), ("self", _removed)),
    "unsqueeze": ("self", _inserted),
    **dict.fromkeys(("permute", "t", "transpose"), ("self", _permuted)),
}
"""The argument that may have examples, and where they are in the result."""
