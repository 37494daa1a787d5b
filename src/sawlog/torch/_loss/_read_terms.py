"""Read the terms of a loss from its graph."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.errors import ArgumentError, CaptureError, MixedExamplesError
from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    BUILT_IN,
    Edge,
    Node,
    operation,
    shape_of,
    signed,
)
from sawlog.torch._loss._broadcasts import summands_of
from sawlog.torch._loss._declared import DeclaredLosses, Items
from sawlog.torch._loss._example_order import check_order
from sawlog.torch._loss._examples import Examples, normalises
from sawlog.torch._loss._masks import number_of, source_of
from sawlog.torch._loss._scale import JOINS, class_weights, plain_scale, scale_of, share_of
from sawlog.torch._loss._terms import Scale, Term, Unclear

_THROUGH = {"Neg", "Add", "Sub", "Rsub"}


_SHAPES = {"View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias",
           "Stack", "Cat", "Expand"}  # fmt: skip


_SINK = "_DDPSink"


_LINEAR_JOINS = {
    "Addmm", "Addmv", "AsStrided", "Bmm", "Cumsum", "Diagonal", "Flip", "Gather", "Index",
    "IndexAdd", "IndexCopy", "IndexPut", "IndexSelect", "MaskedFill", "MaskedSelect", "Mm", "Mv",
    "NanToNum", "Nansum", "Permute", "Repeat", "Roll", "Scatter", "ScatterAdd", "Select", "Slice",
    "Split", "SplitWithSizes", "T", "Take", "Trace", "Transpose", "Unbind", "UnsafeSplit", "Where",
}  # fmt: skip
"""Operations that are linear in each input; any other may mix the examples that were joined."""


_CLASSES = {"NllLoss", "NllLoss2D", "MultiMarginLoss", "MultilabelMarginLoss"}
"""Losses that compare the elements of an axis: the second, or the only one."""


_NEAR = 60  # how many edges of the graph are near the loss


_LOOKUPS = {"Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather"}


def terms_of(
    roots: Sequence[Edge],
    examples: Examples,
    declared: Scale | None = None,
    known: bool = False,
    losses: DeclaredLosses | None = None,
    items: Items | None = None,
    scaled: Container[Node] = (),
) -> list[Term]:
    """Return the terms of a loss.

    Args:
        roots: the edges of the losses.
        examples: finds the examples in a tensor.
        declared: the scale that the user declared; None reads it from the graph.
        known: whether the structure was proven before, so that no term is of parameters alone, and
            nothing changes the order of the examples.
        losses: which tensors are the loss, if declared.
        items: how many items the loss counts, if declared.
        scaled: contains the products that a ``GradScaler`` computed, which say nothing about how
            the loss joins examples.

    Raises:
        ArgumentError: the graph does not determine the scale.
    """
    reader = _Reader(examples, declared, known or examples.batch == 1, items, scaled)
    try:
        for root in roots:
            reader.root = root
            reader.read(*(losses.path_from(root) if losses else (root, ())))
    except Unclear as error:
        many = examples.batch
        raise ArgumentError(
            f"The graph of the loss does not show whether it is a mean or a sum over the {many} "
            f'examples: {error}. Hint: declare it by run.setup(reduction="mean"), or "sum"; '
            '"tokens" for a mean over all positions of the mask.'
        ) from None
    return reader.terms


class _Reader:
    """Reads one loss down to its terms."""

    def __init__(
        self,
        examples: Examples,
        declared: Scale | None,
        known: bool,
        items: Items | None,
        scaled: Container[Node],
    ) -> None:
        self.examples, self.declared, self.known, self.items = examples, declared, known, items
        self.batch, self.scaled = examples.batch, scaled
        self.root: Edge = (None, 0)
        self.terms: list[Term] = []

    def read(
        self, edge: Edge, path: tuple[tuple[Node, int], ...], by: tuple[Any, ...] = ()
    ) -> None:
        """Read the graph below an edge; ``by`` are the factors on the way, the nearest last."""
        node, _ = edge
        if node is None:
            raise Unclear("it does not depend on any parameter")
        labels = self._labels(edge) if shape_of(edge) else None
        if labels is not None:  # one loss for each example
            self._add(edge, path, labels, 1.0)
            return
        name = operation(node)
        if name == _SINK:  # DistributedDataParallel passes the outputs of a model through it
            self.read(_through_sink(edge), path, by)
            return
        self._refuse_penalty(node)
        if name in JOINS or hasattr(node, "_saved_reduction"):
            self._join(node, path, by)
        elif name in _THROUGH or name in _SHAPES or node in self.scaled:
            self._each(node, path, by)
        elif name in ("Div", "Mul"):
            self._factor(node, path, by)
        elif self.batch > 1 and not self._is_linear(node):
            raise _not_a_sum(node)
        elif self.declared is not None:
            self._join(node, path, by)
        else:
            raise Unclear(f"it is computed by {node.name()}")

    def _each(self, node: Node, path: Any, by: Any) -> None:
        for place, child in enumerate(node.next_functions):
            if child[0] is not None:
                self.read(child, (*path, (node, place)), by)

    def _is_linear(self, node: Node) -> bool:
        """Return whether an operation is linear in its inputs; those of users are, if declared."""
        if type(node) not in BUILT_IN:
            return True
        return operation(node) in _LINEAR_JOINS and _has_one_of_examples(node)

    def _factor(self, node: Node, path: Any, by: Any) -> None:
        """Follow a product with a number, or a quotient."""
        if self.batch > 1 and not _has_one_of_examples(node):
            raise _not_a_sum(node)
        if sum(child is not None for child, _ in node.next_functions) > 1 and self.declared is None:
            raise Unclear("it is divided or multiplied by a tensor that depends on parameters")
        number = number_of(node)
        kind = operation(node).lower()
        self._each(node, path, (*by, (kind, math.nan if number is None else number)))

    def _labels(self, edge: Edge) -> Tensor | None:
        return self.examples.of(edge)

    def _labels_below(self, node: Node, edge: Edge) -> Tensor | None:
        """Return the examples of a tensor that a node joins."""
        found = None
        if self.batch > 1 and operation(node) in ("Mean", "Sum", "Nansum"):
            found = self.examples.of_groups(edge)
        return self._labels(edge) if found is None else found

    def _add(self, edge: Edge, path: Any, labels: Tensor, scale: Scale) -> None:
        self._refuse_penalty(edge[0])
        self._refuse_softmax(edge)
        if not self.known:
            check_order(edge, self.examples)
        scale = scale if self.declared is None else self.declared
        self.terms.append(Term(self.root, edge, path, labels, scale))

    def _refuse_penalty(self, node: Node) -> None:
        if not self.known and _of_parameters_alone(node):
            raise CaptureError(
                f"A term of the loss ({node.name()}) depends on parameters alone, such as a weight "
                "penalty. It belongs to no example, so the gradients of examples do not include "
                "it. Hint: leave it out of the loss inside `with run(...)`; the optimizer has "
                "weight_decay=."
            )

    def _join(self, node: Node, path: Any, by: Any) -> None:
        """Read a node that joins the examples, or that joins another axis only."""
        children = [
            (place, child)
            for place, child in enumerate(node.next_functions)
            if child[0] is not None
        ]
        if not children:
            raise Unclear(f"{node.name()} has no graph")
        for place, child in children:
            if self._join_summands(node, child, (*path, (node, place)), by):
                continue
            labels = self._labels_below(node, child)
            if labels is None:
                shape = shape_of(child)
                self._refuse_softmax(child)
                if hasattr(node, "_saved_reduction"):
                    raise Unclear(f"the loss has {_rows(shape)} targets for {self.batch} examples")
                if not shape or not self._has_room(shape):
                    self.read(child, (*path, (node, place)), by)
                    continue
                raise Unclear(
                    f"{node.name()} joins a tensor of shape {shape}, and it is unknown which of "
                    f"its elements belong to which of {self.batch} examples"
                )
            self._refuse_twice(child)
            self._refuse_classes(node, child, labels)
            scale: Scale = 1.0
            if self.declared is None:
                scale = self._scale(node, child, labels, by)
            self._add(child, (*path, (node, place)), labels, scale)

    def _join_summands(self, node: Node, edge: Edge, path: Any, by: Any) -> bool:
        """Read a tensor of which all rows got a number that joins the examples; False for others.

        A mean of that number is the number itself.
        """
        if self.batch == 1 or operation(node) not in ("Mean", "Sum"):
            return False
        summands = summands_of(edge, _is_joined)
        rows = max((each.size for each in summands), default=1)
        if not summands or any(each.size not in (1, rows) for each in summands):
            return False
        labels = [None if each.size == 1 else self._labels(each.edge) for each in summands]
        if any(each.size > 1 and own is None for each, own in zip(summands, labels, strict=True)):
            return False
        if operation(node) == "Sum":
            raise CaptureError(
                f"A sum over the examples ({node.name()}) contains a number that joins them all, "
                "so it counts as often as there are examples, and not once as in a batch of one. "
                "Hint: add it to the sum, not to the loss of each example; or take the mean."
            )
        for each, own in zip(summands, labels, strict=True):
            below, factors = (*path, *each.path), (*by, *each.by)
            if own is None:
                self.read(each.edge, below, factors)
            else:
                self._add(each.edge, below, own, self._scale(node, each.edge, own, factors))
        return True

    def _scale(self, node: Node, edge: Edge, labels: Tensor, by: Any) -> Scale:
        """Return the scale of a tensor that a node joins."""
        items, times = self.items, 1.0
        if items is not None:
            by, times = items.without_times(by), items.times
            if operation(node) != "Mean" and getattr(node, "_saved_reduction", 2) == 2:
                counted = items.scale(node, edge, labels, by, self.batch)
                if counted is not None:
                    return counted / times
        even = labels is self.examples.each
        plain = plain_scale(node, edge, by, self.batch) if even else None
        if plain is not None:
            return plain / times
        weights = self._class_weights() if by else []
        smoothed = [own for below, own in weights if below is source_of(edge)]
        scale = share_of(smoothed[0], by) if smoothed else None
        if scale is None:
            scale = scale_of(node, edge, labels, by, self.batch, [own for _, own in weights])
        return scale / times

    def _class_weights(self) -> list[tuple[Node, Tensor]]:
        """Return the weights of the examples in each term that weights classes, with its input.

        A cross entropy with label smoothing divides another sum by their total.
        """
        found, nodes = [], list(dict.fromkeys(child for child, _ in self._near_root()))
        for node in nodes:
            if operation(node) in ("NllLoss", "NllLoss2D") and node._saved_weight is not None:
                labels = self._labels(node.next_functions[0])
                if labels is not None:
                    own = class_weights(node, labels, self.batch)
                    found.append((source_of(node.next_functions[0]), own))
        return found

    def _near_root(self) -> list[Edge]:
        """Return the edges near the loss."""
        edges = [self.root]
        for node, _ in edges:  # grows inside the loop
            if len(edges) > _NEAR:
                break
            edges += [edge for edge in node.next_functions if edge[0] is not None]
        return edges

    def _has_room(self, shape: Sequence[int]) -> bool:
        """Return whether the examples could be part of some axis of a tensor."""
        return any(size % self.batch == 0 for size in shape) and self.batch > 1

    def _refuse_classes(self, node: Node, edge: Edge, labels: Tensor) -> None:
        """Refuse a loss that compares the examples, because they are on the axis of its classes."""
        if operation(node) not in _CLASSES or self.batch == 1:
            return
        axis = min(1, len(shape_of(edge)) - 1)
        if labels.dim() > axis and bool(labels.diff(dim=axis).any()):
            raise _not_a_sum(node, "has the examples along the axis of the classes")

    def _refuse_softmax(self, edge: Edge) -> None:
        """Refuse a softmax over the examples, of which the loss may use one element only."""
        node, _ = edge
        if operation(node) not in ("LogSoftmax", "Softmax") or self.batch == 1:
            return
        labels = self._labels(node.next_functions[0])
        if labels is not None and normalises(node, labels):
            raise _not_a_sum(node, "compares the examples")

    def _refuse_twice(self, edge: Edge) -> None:
        """Refuse an axis of the length of the batch that is left after the examples were summed."""
        node, _ = edge
        if operation(node) not in ("Sum", "Mean") or self.batch == 1:
            return
        child = node.next_functions[0]
        dims = getattr(node, "_saved_dim", None)
        if child[0] is None or dims is None:
            return
        shape, labels = shape_of(child), self._labels(child)
        if labels is None:
            return
        joined = [signed(dim) % len(shape) for dim in dims]
        if any(dim < labels.dim() and bool(labels.diff(dim=dim).any()) for dim in joined):
            raise Unclear(f"the examples could be either axis of a tensor of shape {shape}")


def _through_sink(edge: Edge) -> Edge:
    """Return the edge that an identity with several outputs has below one of them."""
    node, output = edge
    below: Edge = node.next_functions[output]
    if below[0] is None or shape_of(below) != shape_of(edge):
        raise Unclear(f"it comes from {node.name()}")
    return below


def _has_one_of_examples(node: Node) -> bool:
    """Return whether at most one input of a product depends on examples: it is linear in them."""
    children = [child for child, _ in node.next_functions if child is not None]
    return len(children) < 2 or sum(not _of_parameters_alone(each) for each in children) < 2


def _not_a_sum(
    node: Node, why: str = "is not linear in the losses of the examples"
) -> MixedExamplesError:
    """Return the error for a loss that is not a sum or mean over examples."""
    return MixedExamplesError(
        f"The loss is not a sum or mean over the examples: {node.name()} {why}, so what one "
        "example does changes the gradients of others, and they have no gradients of their own. "
        "Hint: compute the loss of each example, and take their sum or mean; leave a penalty of "
        "parameters, which belongs to no example, out of the loss inside `with run(...)`; or log "
        "batches of one example."
    )


def _is_joined(node: Node) -> bool:
    """Return whether a number may be computed from examples, and not from parameters alone."""
    return node.name() != ACCUMULATE and not _of_parameters_alone(node)


def _rows(shape: Sequence[int]) -> int:
    return int(shape[0]) if shape else 1


def _of_parameters_alone(node: Node) -> bool:
    """Return whether a node depends on parameters alone."""
    stack, seen = [node], {node}
    while stack:
        each = stack.pop()
        if each.name() == ACCUMULATE:
            if not isinstance(each.variable, nn.Parameter):
                return False
            continue
        children = [child for child, _ in each.next_functions]
        data = operation(each) in _LOOKUPS or any(child is None for child in children)
        if not children or data or len(seen) > 200:
            return False
        for child in children:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return True
