"""Find out how the loss of one batch joins its examples: from its graph, or from the options."""

from __future__ import annotations

from collections.abc import Container

import torch

from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._autograd_graph import Graph, Node, shape_of
from sawlog.torch._hooks._autograd_patches import Backward
from sawlog.torch._hooks._hooks import Hooks
from sawlog.torch._loss._declared import DeclaredLosses, Items
from sawlog.torch._loss._examples import Examples
from sawlog.torch._loss._normalised_weights import check_weights
from sawlog.torch._loss._read_terms import terms_of
from sawlog.torch._loss._roots import Roots
from sawlog.torch._loss._scale import even_scale, is_even
from sawlog.torch._loss._terms import Scale, Term, agreed


class LossReader:
    """Reads the terms of a loss, and the scale of the gradients of its examples.

    Args:
        batch: the batch.
        reduction: how the loss joins examples: ``"auto"`` reads it from the graph.
        hooks: the layers that were called, for messages.
        scaled: contains the products that a ``GradScaler`` computed.
    """

    def __init__(
        self, batch: BatchSpec, reduction: str, hooks: Hooks, scaled: Container[Node] = ()
    ) -> None:
        self._batch, self.reduction, self._hooks, self._scaled = batch, reduction, hooks, scaled
        self.losses = DeclaredLosses()
        self.items: Items | None = None

    def declared(self) -> Scale | None:
        """Return the scale that ``reduction`` declares; None if the graph has to be read."""
        if self.reduction in ("sum", "mean"):
            return 1.0 if self.reduction == "sum" else float(self._batch.size)
        if self.reduction == "tokens":
            if self._batch.mask is None:
                raise ArgumentError(
                    'reduction="tokens" needs the mask of the positions that count. Hint: '
                    "run(data_id=ids, mask=attention_mask)."
                )
            own = self._batch.mask.reshape(self._batch.size, -1).sum(1).to(torch.float64)
            return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))
        return None

    def terms(self, roots: Roots, known: bool = False) -> list[Term]:
        """Return the terms of the loss; ``known`` says that the structure was proven before."""
        if self._batch.size == 1 and self.items is None:
            zero = torch.zeros((), dtype=torch.long)
            return [Term(edge, edge, (), zero, 1.0) for edge in roots.edges]
        examples = Examples(self._batch.size, self._batch.axis, self._batch.views)
        try:
            return terms_of(
                roots.edges,
                examples,
                self.declared(),
                known,
                self.losses,
                self.items,
                self._scaled,
            )
        except ArgumentError:
            self._check_sizes()
            raise

    def scale(self, roots: Roots, even: bool) -> tuple[Scale | None, list[Term]]:
        """Return the scale of all terms of the loss; None, and the terms, where they differ.

        Args:
            roots: the loss.
            even: whether one operation joins a tensor with one row for each example.
        """
        if even and self.declared() is None and self.items is None:
            node = roots.nodes[0]
            if shape_of(node.next_functions[0])[0] == self._batch.size:
                found = even_scale(node, self._batch.size)
                if found is not None:
                    return found, []
        terms = self.terms(roots, known=True)
        return agreed(terms), terms

    def is_even(self, terms: list[Term], graph: Graph) -> bool:
        """Return whether the operation that joins the examples alone determines the scale."""
        batch = self._batch
        if batch.size == 1 or batch.views != 1 or batch.axis or len(terms) != 1:
            return False
        return is_even(terms[0], batch.size) and not graph.named("IndexBackward")

    def check_weights(self, terms: list[Term]) -> None:
        """Raise a CaptureError where weights in the loss were normalised over the batch."""
        if self._batch.size > 1 and self.declared() is None:
            check_weights(terms, self._batch.size)

    def check_grads(self, backward: Backward) -> None:
        """Raise a CaptureError for gradients passed to ``backward`` that the graph cannot show."""
        if self._batch.size == 1 or self.declared() is not None:
            return
        for loss, grad in zip(backward.losses, backward.grads, strict=False):
            if grad is not None and loss.requires_grad and not bool((grad == 1).all()):
                raise CaptureError(
                    f"backward was called on a tensor of shape {tuple(loss.shape)} with a gradient "
                    "that is not all ones. That gradient is not part of the loss, so whether it "
                    "takes a mean or weights the examples cannot be read from the graph. Hint: "
                    "call backward on a scalar, as losses.sum().backward(), "
                    "losses.mean().backward() or (losses * w).sum().backward(); or declare it by "
                    'run.setup(reduction="mean"), or "sum".'
                )

    def _check_sizes(self) -> None:
        """Raise a clearer error where the number of ids is wrong."""
        for edge, name in zip(self._hooks.edges, self._hooks.calls, strict=False):
            shape = edge.node._input_metadata[edge.output_nr].shape
            axis = self._batch.axis
            size = int(shape[axis if len(shape) > axis + 1 else 0]) if shape else 0
            if size != 1 and size % self._batch.size:
                raise CaptureError(
                    f"The layer {name!r} received {size} examples, and data_id names "
                    f"{self._batch.size}. Hint: pass one id for each example; "
                    "watch(model, batch_axis=1) where the sequence comes first; torch.cat the "
                    "outputs before the loss where the model is called on parts of the batch."
                ) from None
