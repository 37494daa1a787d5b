"""Refuse operations that mix the examples of a batch."""

from __future__ import annotations

from collections.abc import Iterable

from sawlog.errors import ArgumentError
from sawlog.torch._graph._autograd_graph import Node


def refuse_mixing(nodes: Iterable[Node], batch: int) -> None:
    """Raise an ArgumentError for operations that mix the examples of a batch."""
    nodes = list(nodes)
    for node in (each for each in nodes if "BatchNorm" in each.name()):
        training = getattr(node, "_saved_training", getattr(node, "_saved_train", False))
        if training and batch > 1 and node._input_metadata[0].shape[0] != 1:
            raise ArgumentError(
                "A batch norm in train mode normalises over the examples of the batch "
                f"({node.name()}), so they have no gradients of their own. "
                "Hint: call `.eval()` on BatchNorm layers, or use GroupNorm."
            )
    for node in (each for each in nodes if "EmbeddingBackward" in each.name()):
        if batch > 1 and getattr(node, "_saved_scale_grad_by_freq", False):
            raise ArgumentError(
                "The gradients of an embedding are divided by how often an index is in the batch "
                "(scale_grad_by_freq=True), so examples have no gradients of their own. "
                "Hint: scale_grad_by_freq=False."
            )
