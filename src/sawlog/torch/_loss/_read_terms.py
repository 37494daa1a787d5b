"""Read the terms of a loss from its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._graph._autograd_graph import ACCUMULATE, Edge, Node, operation, shape_of, signed
from sawlog.torch._loss._declared import DeclaredLosses, Items
from sawlog.torch._loss._example_order import check_order
from sawlog.torch._loss._examples import Examples
from sawlog.torch._loss._masks import is_number
from sawlog.torch._loss._scale import JOINS, plain_scale, scale_of
from sawlog.torch._loss._terms import Scale, Term, Unclear

_THROUGH = {"Neg", "Add", "Sub"}


_SHAPES = {"View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias",
           "Stack", "Cat", "Expand"}  # fmt: skip


_SINK = "_DDPSink"


_CURVED = {  # of all examples, which is neither a sum nor a mean of something of each
    "Sqrt", "Rsqrt", "Log", "Log1P", "Log2", "Log10", "Exp", "Expm1", "Pow", "Reciprocal", "Tanh",
    "Sigmoid", "LogSigmoid", "Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax", "Max",
    "Min", "Maximum", "Minimum", "Amax", "Amin", "Median", "Kthvalue", "Topk", "Sort", "Logsumexp",
    "Prod", "Var", "Std", "VarMean", "StdMean", "Norm", "LinalgVectorNorm",
}  # fmt: skip


_LOOKUPS = {"Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather"}


def terms_of(
    roots: Sequence[Edge],
    examples: Examples,
    declared: Scale | None = None,
    known: bool = False,
    losses: DeclaredLosses | None = None,
    items: Items | None = None,
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

    Raises:
        ArgumentError: the graph does not determine the scale.
    """
    reader = _Reader(examples, declared, known or examples.batch == 1, items)
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
        self, examples: Examples, declared: Scale | None, known: bool, items: Items | None
    ) -> None:
        self.examples, self.declared, self.known, self.items = examples, declared, known, items
        self.batch = examples.batch
        self.root: Edge = (None, 0)
        self.terms: list[Term] = []

    def read(
        self, edge: Edge, path: tuple[tuple[Node, int], ...], by: tuple[Any, ...] = ()
    ) -> None:
        """Read the graph below an edge; ``by`` are the factors on the way, the nearest last."""
        node, _ = edge
        if node is None:
            raise Unclear("it does not depend on any parameter")
        if shape_of(edge) and self._labels(edge) is not None:  # one loss for each example
            self._add(edge, path, 1.0)
            return
        name = operation(node)
        if name == _SINK:  # DistributedDataParallel passes the outputs of a model through it
            self.read(_through_sink(edge), path, by)
            return
        self._refuse_penalty(node)
        if name in JOINS or hasattr(node, "_saved_reduction"):
            self._join(node, path, by)
        elif name in _THROUGH or name in _SHAPES:
            self._each(node, path, by)
        elif name in ("Div", "Mul"):
            self._factor(node, path, by)
        elif self.declared is not None:
            self._refuse_curved(node)
            self._join(node, path, by)
        else:
            raise Unclear(f"it is computed by {node.name()}")

    def _each(self, node: Node, path: Any, by: Any) -> None:
        for place, child in enumerate(node.next_functions):
            if child[0] is not None:
                self.read(child, (*path, (node, place)), by)

    def _factor(self, node: Node, path: Any, by: Any) -> None:
        """A product with a number, or a quotient."""
        if sum(child is not None for child, _ in node.next_functions) > 1:
            self._refuse_curved(node)
            if self.declared is None:
                raise Unclear("it is divided or multiplied by a tensor that depends on parameters")
        other = getattr(node, "_saved_other", None)
        other = getattr(node, "_saved_self", None) if other is None else other
        number = float(other) if other is not None and is_number(other) else float("nan")
        kind = operation(node).lower()
        self._each(node, path, (*by, (kind, number)))

    def _labels(self, edge: Edge) -> Tensor | None:
        return self.examples.of(edge)

    def _add(self, edge: Edge, path: Any, scale: Scale) -> None:
        labels = self._labels(edge)
        assert labels is not None
        self._refuse_penalty(edge[0])
        if not self.known:
            check_order(edge, self.examples)
        scale = scale if self.declared is None else self.declared
        self.terms.append(Term(self.root, edge, path, labels, scale))

    def _refuse_curved(self, node: Node) -> None:
        """Refuse a function of all examples that is declared to be a sum or a mean of them."""
        curved = operation(node) in _CURVED or operation(node) in ("Mul", "Div")
        if self.declared is not None and self.batch > 1 and curved:
            raise CaptureError(
                f"The loss was declared to be a sum or a mean over the examples, but it is "
                f"computed by {node.name()} from all {self.batch} of them, so they have no "
                "gradients of their own. Hint: compute it for each example before they are "
                "joined, or leave this term out of the loss inside `with run(...)`."
            )

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
            labels = self._labels(child)
            if labels is None:
                shape = shape_of(child)
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
            scale: Scale = 1.0
            if self.declared is None:
                scale = self._scale(node, child, labels, by)
            self._add(child, (*path, (node, place)), scale)

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
        found = plain_scale(node, edge, by, self.batch) if even else None
        return (scale_of(node, edge, labels, by, self.batch) if found is None else found) / times

    def _has_room(self, shape: Sequence[int]) -> bool:
        """Whether the examples could be part of some axis of a tensor."""
        return any(size % self.batch == 0 for size in shape) and self.batch > 1

    def _refuse_twice(self, edge: Edge) -> None:
        """Refuse an axis of the length of the batch that is left after the examples were summed."""
        node, _ = edge
        if operation(node) not in ("Sum", "Mean") or self.batch == 1:
            return
        child = node.next_functions[0]
        dims = getattr(node, "_saved_dim", None)
        if child[0] is None or dims is None:
            return
        shape = shape_of(child)
        if any(signed(dim) % len(shape) == 0 for dim in dims) and self._labels(child) is not None:
            raise Unclear(f"the examples could be either axis of a tensor of shape {shape}")


def _through_sink(edge: Edge) -> Edge:
    """Return the edge that an identity with several outputs has below one of them."""
    node, output = edge
    below: Edge = node.next_functions[output]
    if below[0] is None or shape_of(below) != shape_of(edge):
        raise Unclear(f"it comes from {node.name()}")
    return below


def _rows(shape: Sequence[int]) -> int:
    return int(shape[0]) if shape else 1


def _of_parameters_alone(node: Node) -> bool:
    """Whether a node depends on parameters alone."""
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
