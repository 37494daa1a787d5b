"""How a loss joins the examples of a batch, read from its graph.

The gradient of an example is what the same program gives for a batch of that example alone. Where
the loss is a mean over the examples, what flows back is that divided by their number; where it is a
mean over positions that count, as in language models with padding, divided by the number of all of
them and multiplied by its own.

A loss is a sum of terms. Each is a tensor that still has its examples apart, and an operation that
joins them; for each there is a factor for every example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._graph._autograd_graph import (
    ACCUMULATE,
    Edge,
    Node,
    call,
    operation,
    shape_of,
    sum_to,
)
from sawlog.torch._loss._example_order import check_order
from sawlog.torch._loss._examples import Examples

Scale = float | Tensor

_THROUGH = {"Neg", "Add", "Sub"}
_SHAPES = {"View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias",
           "Stack", "Cat", "Expand"}  # fmt: skip
_JOINS = {"Sum", "Mean", "Dot"}
_LOOKUPS = {"Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather"}


@dataclasses.dataclass(frozen=True)
class Term:
    """One tensor of the loss that has its examples apart.

    Args:
        root: the loss, or that one of several, to which it belongs.
        edge: where it is in the graph.
        path: from the loss to it: nodes, and the input of each that leads on.
        labels: the example of each of its rows, in the shape of its first axes.
        scale: by what the gradient of each example is to be multiplied.
    """

    root: Edge
    edge: Edge
    path: tuple[tuple[Node, int], ...]
    labels: Tensor
    scale: Scale

    def gradient(self, start: Tensor) -> Tensor:
        """The gradient of this tensor in this term, given that of the loss."""
        grad = start
        for node, place in self.path:
            grads = [None] * len(node._input_metadata)
            found = call(node, *([grad, *grads[1:]] if len(grads) > 1 else [grad]))[place]
            assert found is not None
            grad = sum_to(found, shape_of(node.next_functions[place]))
        return grad

    def weighted(self, grad: Tensor, weights: Scale) -> Tensor:
        """A gradient times a number, or one for each example."""
        if isinstance(weights, float):
            return grad if weights == 1.0 else grad * weights
        by = weights.to(grad.device)[self.labels.to(grad.device)].to(grad.dtype)
        return grad * by.reshape((*by.shape, *(1,) * (grad.dim() - by.dim())))


class Unclear(Exception):
    """The graph does not tell."""


def terms_of(
    roots: Sequence[Edge],
    examples: Examples,
    declared: Scale | None = None,
    known: bool = False,
) -> list[Term]:
    """The terms of a loss.

    Args:
        roots: the loss, or several.
        examples: finds the examples in a tensor.
        declared: the scale, where it need not be read from the graph.
        known: the structure of the graph is known, so that there are no terms of parameters
            alone, and nothing picks examples in another order.

    Raises:
        ArgumentError: the graph does not tell.
    """
    reader = _Reader(examples, declared, known or examples.batch == 1)
    try:
        for root in roots:
            reader.root = root
            reader.read(root, ())
    except Unclear as error:
        many = examples.batch
        raise ArgumentError(
            f"It cannot be seen from the loss whether it is a mean or a sum over the {many} "
            f'examples: {error}. Hint: say it, as in run.setup(reduction="mean"), or "sum"; '
            '"tokens" for a mean over all positions of the mask.'
        ) from None
    return reader.terms


def is_even(term: Term, batch: int) -> bool:
    """Whether a loss is a tensor with one row for each example, joined by one operation.

    In graphs of the same structure :func:`even_scale` then tells its scale.
    """
    if len(term.path) != 1 or term.root[0] is not term.path[0][0] or term.path[0][1]:
        return False
    if operation(term.edge[0]) in (*_LINEAR, *_JOINS):  # with numbers, which may change
        return False
    return torch.equal(term.labels, torch.arange(batch))


def agreed(terms: Sequence[Term]) -> Scale | None:
    """The scale that all terms have; None where they differ."""
    first = terms[0].scale
    for term in terms[1:]:
        if not torch.equal(torch.as_tensor(first), torch.as_tensor(term.scale)):
            return None
    return first


class _Reader:
    """One walk from a loss to its terms."""

    def __init__(self, examples: Examples, declared: Scale | None, known: bool) -> None:
        self.examples, self.declared, self.known = examples, declared, known
        self.batch = examples.batch
        self.root: Edge = (None, 0)
        self.terms: list[Term] = []

    def read(
        self, edge: Edge, path: tuple[tuple[Node, int], ...], by: tuple[Any, ...] = ()
    ) -> None:
        """Read what is below an edge; ``by`` are the factors on the way, the nearest last."""
        node, _ = edge
        if node is None:
            raise Unclear("it does not depend on any parameter")
        if shape_of(edge) and self._labels(edge) is not None:  # losses of single examples
            self._add(edge, path, 1.0)
            return
        self._refuse_penalty(node)
        name = operation(node)
        if name in _JOINS or hasattr(node, "_saved_reduction"):
            self._join(node, path, by)
        elif name in _THROUGH or name in _SHAPES:
            self._each(node, path, by)
        elif name in ("Div", "Mul"):
            self._factor(node, path, by)
        elif self.declared is not None:
            self._join(node, path, by)
        else:
            raise Unclear(f"it comes from {node.name()}")

    def _each(self, node: Node, path: Any, by: Any) -> None:
        for place, child in enumerate(node.next_functions):
            if child[0] is not None:
                self.read(child, (*path, (node, place)), by)

    def _factor(self, node: Node, path: Any, by: Any) -> None:
        """A product with a number, or a quotient."""
        if sum(child is not None for child, _ in node.next_functions) > 1 and self.declared is None:
            raise Unclear("it is divided by, or multiplied with, what depends on parameters")
        other = getattr(node, "_saved_other", None)
        other = getattr(node, "_saved_self", None) if other is None else other
        number = float(other) if other is not None and _is_number(other) else float("nan")
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

    def _refuse_penalty(self, node: Node) -> None:
        if not self.known and _of_parameters_alone(node):
            raise CaptureError(
                f"A term of the loss ({node.name()}) is of parameters alone, as a penalty on "
                "weights is. It belongs to no example, so the gradients of examples do not tell "
                "of it. Hint: leave it out of the loss inside of `with run(...)`; the optimizer "
                "has weight_decay=."
            )

    def _join(self, node: Node, path: Any, by: Any) -> None:
        """A node that joins the examples, or one that only joins what is no example."""
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
                    f"{node.name()} joins a tensor of shape {shape}, and nothing tells which of "
                    f"it belongs to which of {self.batch} examples"
                )
            self._refuse_twice(child)
            scale: Scale = 1.0
            if self.declared is None:
                even = labels is self.examples.each
                found = _plain_scale(node, child, by, self.batch) if even else None
                scale = _scale(node, child, labels, by, self.batch) if found is None else found
            self._add(child, (*path, (node, place)), scale)

    def _has_room(self, shape: Sequence[int]) -> bool:
        """Whether a tensor could have the examples in it somehow."""
        return any(size % self.batch == 0 for size in shape) and self.batch > 1

    def _refuse_twice(self, edge: Edge) -> None:
        """What looks like examples may be what is left of a tensor that had them elsewhere."""
        node, _ = edge
        if operation(node) not in ("Sum", "Mean") or self.batch == 1:
            return
        child = node.next_functions[0]
        dims = getattr(node, "_saved_dim", None)
        if child[0] is None or dims is None:
            return
        shape = shape_of(child)
        if any(_signed(dim) % len(shape) == 0 for dim in dims) and self._labels(child) is not None:
            raise Unclear(f"the examples could be either axis of a tensor of shape {shape}")


def _rows(shape: Sequence[int]) -> int:
    return int(shape[0]) if shape else 1


def _is_number(other: Any) -> bool:
    return not isinstance(other, Tensor) or other.numel() == 1


def _of_parameters_alone(node: Node) -> bool:
    """Whether nothing but parameters is below."""
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


# -- by how much a term is divided ----------------------------------------------------------------


def _plain_scale(node: Node, edge: Edge, by: Sequence[Any], batch: int) -> float | None:
    """The scale of a tensor with one row for each example, if all of them count alike.

    It is what :func:`_scale` finds, in a few operations: None where these do not tell.
    """
    return None if by or _inner(edge) else even_scale(node, batch)


def even_scale(node: Node, batch: int) -> float | None:
    """The scale of a tensor that only ``node`` joins; None where that does not tell."""
    name, reduction = operation(node), getattr(node, "_saved_reduction", None)
    if reduction == 0 or name == "NllLoss2D":
        return None
    if name == "NllLoss":
        counted = node._saved_target != _signed(node._saved_ignore_index)
        if node._saved_weight is not None or not bool(counted.all()):
            return None
    return float(batch) if name == "Mean" or reduction == 1 else 1.0


def _scale(node: Node, edge: Edge, labels: Tensor, by: Sequence[Any], batch: int) -> Scale:
    name = operation(node)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == 0:
        raise Unclear(f"{node.name()} joins nothing")
    shape = shape_of(edge)
    if name in ("NllLoss", "NllLoss2D"):
        own = _nll_weights(node, labels, batch)
    else:
        own = _counts(labels, batch)
    size = 1
    for each in shape[labels.dim() :]:
        size *= each
    if name == "Mean" or reduction == 1:
        return _of_mean(edge, labels, own, by, batch, size)
    return _of_sum(edge, labels, [own, own * size], by, batch)


def _counts(labels: Tensor, batch: int) -> Tensor:
    return torch.bincount(labels.flatten(), minlength=batch).double()


def _share(own: Tensor) -> Scale:
    """What multiplies a mean by ``own`` weights back to that of each example."""
    if bool((own == own[0]).all()) and bool(own[0] > 0):
        return float(len(own))
    return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))


def _nll_weights(node: Node, labels: Tensor, batch: int) -> Tensor:
    """How much the targets of each example count: those not ignored, by their class."""
    target, weight = node._saved_target, node._saved_weight
    counted = target != _signed(node._saved_ignore_index)
    each = counted.double()
    if weight is not None:
        each = weight.double()[target.clamp(min=0)] * each
    if operation(node) == "NllLoss2D":
        each = each.flatten(1).sum(1)
    labels = labels.to(each.device)
    if labels.dim() > 1 and labels.numel() != each.numel():
        labels = labels[..., 0]
    return _summed(each, labels, batch)


def _summed(each: Tensor, labels: Tensor, batch: int) -> Tensor:
    """The sum over the rows of each example."""
    return torch.bincount(labels.flatten(), each.flatten(), minlength=batch)


def _of_mean(
    edge: Edge, labels: Tensor, own: Tensor, by: Sequence[Any], batch: int, size: int
) -> Scale:
    scale = _share(own)
    inner = _inner(edge)
    if not (by or inner) or batch == 1:
        return scale
    for kind, number in (*by[-1:], *inner):
        if kind == "mul" and number == batch:
            raise Unclear(
                f"it is a mean times {number:g}, which may be the number of examples or a constant"
            )
    positions = float(_counts(labels, batch).sum())
    masks = _masks(edge, labels, batch)

    def masked(number: float) -> list[Tensor]:
        """The masks of which a number is the mean."""
        return [
            mask
            for mask in masks
            if any(
                _alike(float(mask.sum()) / all_, number) for all_ in (positions, positions * size)
            )
        ]

    for kind, number in inner:
        if number != 1 and masked(number if kind == "div" else 1 / number if number else 0.0):
            raise Unclear(_early(kind, number))
    if not by or by[-1][1] == 1:
        return scale
    kind, number = by[-1]
    if kind == "div" and masked(number):  # a mean over all, by that of the mask
        return _share(masked(number)[0])
    if kind == "div" and 0 < number < 1:
        raise Unclear(f"it is a mean divided by {number:g}, which may be the share of what counts")
    if kind == "mul" and number and masked(1 / number):
        raise Unclear(
            f"it is a mean times {number:g}, which may be one by the share of what counts"
        )
    return scale


def _early(kind: str, number: float) -> str:
    done = "divided by" if kind == "div" else "multiplied with"
    return (
        f"it is {done} {number:g} before it is joined, which may come from the number of examples, "
        "or of what counts, or be a constant"
    )


def _inner(edge: Edge) -> list[tuple[str, float]]:
    """The numbers that a tensor was multiplied with, or divided by, before it is joined."""
    found = []
    node, _ = edge
    for _ in range(12):
        name = operation(node)
        children = [child for child, _ in node.next_functions if child is not None]
        if name not in _LINEAR or len(children) != 1:
            break
        other = getattr(node, "_saved_other", None) if name in ("Mul", "Div") else None
        if other is not None and _is_number(other):
            found.append((name.lower(), float(other)))
        node = children[0]
    return found


def _of_sum(
    edge: Edge, labels: Tensor, counts: list[Tensor], by: Sequence[Any], batch: int
) -> Scale:
    """A sum that is divided by a count of what it sums is a mean."""
    inner = _inner(edge)
    if batch == 1 or not (by or inner):
        return 1.0
    every = [torch.ones(batch, dtype=torch.float64), *counts, *_masks(edge, labels, batch)]

    def is_count(number: float) -> bool:
        return any(_alike(float(own.sum()), number) for own in every)

    for kind, number in inner:
        if number not in (0, 1) and is_count(number if kind == "div" else 1 / number):
            raise Unclear(_early(kind, number))
    for kind, number in reversed(by):
        if number == 1:
            continue
        if kind == "mul":
            if number and is_count(1 / number):
                raise Unclear(
                    f"it is a sum times {number:g}, which may be one by the number of examples or "
                    "a constant"
                )
            continue
        found = [_share(own) for own in every if _alike(float(own.sum()), number)]
        if not found:
            raise Unclear(f"it is a sum divided by {number:g}")
        for other in found[1:]:
            if not _agree(found[0], other):
                raise Unclear(
                    f"it is a sum divided by {number:g}, which may be the number of examples, or "
                    "of what counts"
                )
        return found[0]
    return 1.0


def _agree(one: Scale, two: Scale) -> bool:
    """Whether two scales are the same where both are something."""
    one, two = torch.as_tensor(one).double().cpu(), torch.as_tensor(two).double().cpu()
    return bool((torch.isclose(one, two, rtol=1e-6) | (one == 0) | (two == 0)).all())


def _alike(one: float, two: float) -> bool:
    return abs(one - two) <= 1e-5 * abs(two)


_LINEAR = {
    "Mul", "Div", "Neg", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy",
    "Clone", "Sum", "MaskedFill", "Where", "Expand",
}  # fmt: skip
_MASKED = {
    "Mul",
    "MaskedFill",
    "Where",
    "Neg",
    "View",
    "Sum",
    "Squeeze",
    "ToCopy",
    "NllLoss",
    "Div",
}


def _masks(edge: Edge, labels: Tensor, batch: int) -> list[Tensor]:
    """How much of each example the masks and weights count that a tensor was multiplied with."""
    found: list[Tensor] = []
    node, _ = edge
    for _ in range(12):
        if node is None or operation(node) not in _MASKED:
            break
        for mask in _saved_masks(node):
            own = by_example(mask, labels, batch)
            if own is not None:
                found.append(own)
        children = [child for child, _ in node.next_functions if child is not None]
        node = children[0] if children else None
    return found


def _saved_masks(node: Node) -> list[Tensor]:
    name = operation(node)
    if name == "MaskedFill":
        return [~node._saved_mask]
    if name == "Where":
        return [node._saved_condition, ~node._saved_condition]
    if name == "Mul":
        return factors_of(node)
    if name == "NllLoss":
        return [node._saved_target != _signed(node._saved_ignore_index)]
    return []


def factors_of(node: Node) -> list[Tensor]:
    """The constants that a product multiplies with; none where both of its sides have a graph."""
    if sum(child is not None for child, _ in node.next_functions) != 1:
        return []
    names = ("_saved_other", "_saved_self", "_saved_tensor")
    every = [getattr(node, name, None) for name in names]
    return [each for each in every if isinstance(each, Tensor) and each.dim()]


def by_example(mask: Tensor, labels: Tensor, batch: int) -> Tensor | None:
    """The sum over each example of a mask whose first axes are those of the labels."""
    if mask.shape[: labels.dim()] != labels.shape:
        if mask.numel() % max(labels.numel(), 1) or not labels.numel():
            return None
        if mask.shape[:1] != labels.shape[:1]:
            return None
    each = mask.detach().double().reshape(labels.numel(), -1).sum(1)
    return _summed(each, labels.to(each.device), batch)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
