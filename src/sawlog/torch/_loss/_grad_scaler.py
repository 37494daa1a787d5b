"""Find the factor by which a ``GradScaler`` multiplied a loss, by reading its graph.

A program may have a scaler and not use it for a loss, or use it for some terms only. So the
products that it computed are searched for between the loss and its terms.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import Node, operation

_THROUGH = {
    "Neg", "Add", "Sub", "Mul", "Div", "Sum", "Mean", "View", "ReshapeAlias", "UnsafeView",
    "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Stack", "Cat", "Expand",
}  # fmt: skip


class ScaledLosses:
    """The losses that scalers multiplied.

    Args:
        given: the scale of the scaler that the user passed; 1.0 if none was.
    """

    def __init__(self, given: float = 1.0) -> None:
        self._given = given
        self._factors: dict[Node, float] = {}

    def add(self, loss: Tensor, factor: float) -> None:
        """Record that a scaler returned this loss, multiplied by ``factor``."""
        if loss.grad_fn is not None:
            self._factors[loss.grad_fn] = factor

    def __contains__(self, node: object) -> bool:
        """Return whether a scaler computed the product at a node."""
        return node in self._factors

    def factor_of(self, roots: Iterable[Node]) -> float:
        """Return the factor by which the losses at these nodes were multiplied.

        Raises:
            CaptureError: only some terms are scaled, or the scaler that was passed was not used.
        """
        if not self._factors and self._given == 1.0:
            return 1.0
        found = self._factors_of(roots)
        if len(found) > 1:
            raise CaptureError(
                "A GradScaler scales the terms of the loss by different factors "
                f"({', '.join(f'{each:g}' for each in sorted(found))}). Hint: add the terms first, "
                "then call scaler.scale(loss).backward()."
            )
        factor = found.pop() if found else 1.0
        if factor == 1.0 and self._given != 1.0:
            raise CaptureError(
                f"run(..., scaler=scaler) was called with a scale of {self._given:g}, but the loss "
                "is not scaled. Hint: call scaler.scale(loss).backward(), or leave scaler= out."
            )
        return factor

    def _factors_of(self, roots: Iterable[Node]) -> set[float]:
        """Return the factors of the terms, following sums and products."""
        found: set[float] = set()
        stack = [(root, 1.0) for root in roots]
        seen = set(stack)
        while stack:
            node, by = stack.pop()
            by *= self._own(node, by)
            children = [child for child, _ in node.next_functions if child is not None]
            if operation(node) not in _THROUGH or not children:
                found.add(by)
                continue
            for child in children:
                if (child, by) not in seen:
                    seen.add((child, by))
                    stack.append((child, by))
        return found

    def _own(self, node: Node, by: float) -> float:
        if node in self._factors:
            return self._factors[node]
        if by != 1.0 or self._given == 1.0 or operation(node) != "Mul":
            return 1.0
        other = getattr(node, "_saved_other", None)
        number = float(other) if isinstance(other, Tensor) and other.numel() == 1 else 1.0
        return self._given if abs(number - self._given) <= 1e-6 * self._given else 1.0
