"""The ``.grad`` of parameters before and after a backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import Node, graph_of


def grad_state(parameters: Iterable[Tensor]) -> list[Any]:
    """Return a key that changes when the gradient of any parameter is replaced or written."""
    grads = [each.grad for each in parameters]
    return [None if grad is None else (id(grad), grad._version) for grad in grads]


def copied(grad: Tensor | None) -> Tensor | None:
    """Return a copy of a gradient."""
    return None if grad is None else grad.detach().clone()


def added(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Return what a backward pass added to a gradient."""
    found = after if before is None or after is None else after - before
    return found.to_dense() if found is not None and found.is_sparse else found


class LeafGradients:
    """Sets the gradients of leaves aside, so that a backward pass can be undone."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.graphs = 0
        """The number of graphs whose leaves were set aside."""

    def set_aside(self, roots: Sequence[Node]) -> None:
        """Set the gradients of all leaves below some nodes to None, and keep them.

        Raises:
            CaptureError: a leaf has hooks, which a backward pass would call.
        """
        self.graphs += 1
        for node in graph_of(roots).leaves().values():
            leaf = node.variable
            if id(leaf) in self._kept:
                continue
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                raise CaptureError(
                    f"A parameter of shape {tuple(leaf.shape)} has a hook on its gradient, which "
                    "the proof of reentrant checkpointing would call a second time. Hint: "
                    "checkpoint(..., use_reentrant=False)."
                )
            self._kept[id(leaf)] = (leaf, leaf.grad)
            leaf.grad = None

    def restore(self) -> None:
        """Restore all gradients; they are the same objects, with the same values."""
        for leaf, grad in self._kept.values():
            leaf.grad = grad
        self._kept.clear()
