"""Refuse a mean that training divides by an integer, which may be that of micro-batches."""

from __future__ import annotations

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import Edge, operation
from sawlog.torch._loss._masks import is_number

_SHAPES = {"View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias"}


def refuse_quotient(root: Edge) -> None:
    """Raise a CaptureError if a loss is a mean that is divided by an integer.

    The gradient of one example has that factor, or not, depending on what the number is.
    """
    node, number = root[0], None
    while node is not None and (operation(node) == "Div" or operation(node) in _SHAPES):
        if operation(node) == "Div":
            other = getattr(node, "_saved_other", None)
            value = float(other) if other is not None and is_number(other) else 0.0
            if value < 2 or value != round(value) or number is not None:
                return
            number = value
        node = node.next_functions[0][0]
    if node is None or number is None:
        return
    if operation(node) == "Mean" or getattr(node, "_saved_reduction", None) == 1:
        raise CaptureError(
            f"The loss is a mean that is divided by {number:g}. If that is the number of "
            "micro-batches of a step, it is not part of the gradients of examples; if it is part "
            "of the loss, it is. Hint: capture.declare_loss(loss) before you divide the loss, or "
            f"capture.declare_loss(loss / {number:g}) if the quotient is the loss."
        )
