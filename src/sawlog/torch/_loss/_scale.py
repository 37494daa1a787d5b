"""The scale of each example in a term: whether a loss is a mean, a sum, or in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, Node, operation, shape_of, signed
from sawlog.torch._loss._masks import (
    LINEAR,
    by_example,
    factors_of,
    inner_numbers,
    masks_of,
    sum_by_example,
)
from sawlog.torch._loss._terms import Scale, Term, Unclear

JOINS = {"Sum", "Nansum", "Mean", "Dot"}
"""Operations that join the examples of a tensor."""


_EXACT_COUNTS = (torch.float32, torch.float64)


def is_even(term: Term, batch: int) -> bool:
    """Return whether a loss is one tensor with a row for each example, joined by one operation.

    In graphs of the same structure, :func:`even_scale` then returns its scale.
    """
    if len(term.path) != 1 or term.root[0] is not term.path[0][0] or term.path[0][1]:
        return False
    if operation(term.edge[0]) in (*LINEAR, *JOINS):  # with numbers, which may change
        return False
    return torch.equal(term.labels, torch.arange(batch))


def plain_scale(node: Node, edge: Edge, by: Sequence[Any], batch: int) -> float | None:
    """Return the scale of a tensor with one row for each example, if all rows count alike.

    A fast path of :func:`scale_of`; None if it does not apply.
    """
    return None if by or inner_numbers(edge) else even_scale(node, batch)


def even_scale(node: Node, batch: int) -> float | None:
    """Return the scale of a tensor that only ``node`` joins; None if targets are ignored."""
    name, reduction = operation(node), getattr(node, "_saved_reduction", None)
    if reduction == 0 or name == "NllLoss2D":
        return None
    if name == "NllLoss" and not _counts_all(node, batch):
        return None
    return float(batch) if name == "Mean" or reduction == 1 else 1.0


def _counts_all(node: Node, batch: int) -> bool:
    """Return whether a loss of ``batch`` targets has no class weights and ignores no target."""
    if node._saved_weight is not None:
        return False
    counted: Tensor = node._saved_total_weight
    if counted.dtype in _EXACT_COUNTS and batch < 2**24:  # faster than to compare the targets
        return float(counted) == batch
    return bool((node._saved_target != signed(node._saved_ignore_index)).all())


def scale_of(
    node: Node,
    edge: Edge,
    labels: Tensor,
    by: Sequence[Any],
    batch: int,
    weights: Sequence[Tensor] = (),
) -> Scale:
    """Return the scale of each example of a tensor.

    Args:
        node: the operation that joins the examples.
        edge: the tensor that it joins.
        labels: the example of each row of the tensor.
        by: the products and quotients between the loss and the node, the nearest last.
        batch: the number of examples.
        weights: weights of the examples that other terms have, whose sum may divide this one.

    Raises:
        Unclear: a factor may come from the batch or be a constant.
    """
    name = operation(node)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == 0:
        raise Unclear(f"{node.name()} does not join the examples")
    shape = shape_of(edge)
    if name in ("NllLoss", "NllLoss2D"):
        own = class_weights(node, labels, batch)
    else:
        own = _counts(labels, batch)
    size = 1
    for each in shape[labels.dim() :]:
        size *= each
    if name == "Mean" or reduction == 1:
        return _of_mean(edge, labels, own, by, batch, size)
    factors = factors_of(node) if name == "Dot" else []
    sums = [by_example(each, labels, batch) for each in factors]
    every = [own, own * size, *weights, *(each for each in sums if each is not None)]
    return _of_sum(edge, labels, every, by, batch)


def _counts(labels: Tensor, batch: int) -> Tensor:
    return torch.bincount(labels.flatten(), minlength=batch).double()


def _share(own: Tensor) -> Scale:
    """Return the factors from a mean with ``own`` weights to the mean of each example."""
    if bool((own == own[0]).all()) and bool(own[0] > 0):
        return float(len(own))
    return torch.where(own > 0, own.sum() / own, torch.zeros_like(own))


def share_of(own: Tensor, by: Sequence[Any]) -> Scale | None:
    """Return the scale of a sum that is divided by the total of weights; None if it is not."""
    divided = [number for kind, number in by if kind == "div" and number != 1]
    return _share(own) if len(divided) == 1 and _alike(float(own.sum()), divided[0]) else None


def class_weights(node: Node, labels: Tensor, batch: int) -> Tensor:
    """Return the weight of each example: the class weights of its targets, unless ignored."""
    target, weight = node._saved_target, node._saved_weight
    counted = target != signed(node._saved_ignore_index)
    each = counted.double()
    if weight is not None:
        each = weight.double()[target.clamp(min=0)] * each
    labels = labels.to(each.device)
    if labels.dim() > 1:
        labels = labels.select(1, 0)  # an element of a class is of the example of its target
    if labels.dim() < each.dim():
        each = each.flatten(labels.dim()).sum(-1)
    return sum_by_example(each, labels, batch)


def _of_mean(
    edge: Edge, labels: Tensor, own: Tensor, by: Sequence[Any], batch: int, size: int
) -> Scale:
    scale = _share(own)
    inner = inner_numbers(edge)
    if not (by or inner) or batch == 1:
        return scale
    positions = float(_counts(labels, batch).sum())
    numbers = {
        "examples": float(batch),
        "positions that count": float(own.sum()),
        "positions": positions,
        "elements": positions * size,
    }
    for kind, number in (*by, *inner):
        counted = [name for name, each in numbers.items() if _alike(each, number)]
        if kind == "mul" and number != 1 and counted:
            raise Unclear(
                f"it is a mean times {number:g}, which may be the number of {counted[0]} or a "
                "constant"
            )
    masks = masks_of(edge, labels, batch)

    def masked(number: float) -> list[Tensor]:
        """Return the masks whose mean is a number."""
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
    if kind == "div" and masked(number):  # a mean over all positions, divided by that of the mask
        return _share(masked(number)[0])
    if kind == "div" and 0 < number < 1:
        raise Unclear(f"it is a mean divided by {number:g}, which may be the mean of a mask")
    if kind == "mul" and number and masked(1 / number):
        raise Unclear(
            f"it is a mean times {number:g}, which may be 1 divided by the mean of a mask"
        )
    return scale


def _early(kind: str, number: float) -> str:
    done = "divided by" if kind == "div" else "multiplied by"
    return (
        f"it is {done} {number:g} before it is joined, which may be computed from the number of "
        "examples or positions, or be a constant"
    )


def _of_sum(
    edge: Edge, labels: Tensor, counts: list[Tensor], by: Sequence[Any], batch: int
) -> Scale:
    """Return the scale of a sum; divided by a count of its summands, it is a mean."""
    inner = inner_numbers(edge)
    if batch == 1 or not (by or inner):
        return 1.0
    every = [torch.ones(batch, dtype=torch.float64), *counts, *masks_of(edge, labels, batch)]

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
                    f"it is a sum times {number:g}, which may be 1 divided by the number of "
                    "examples, or a constant"
                )
            continue
        found = [_share(own) for own in every if _alike(float(own.sum()), number)]
        if not found:
            raise Unclear(
                f"it is a sum divided by {number:g}, which is neither the number of its examples "
                "nor that of positions that count; if a term joins the whole batch, as an "
                "auxiliary loss of routed experts does, leave it out inside of the `with`"
            )
        for other in found[1:]:
            if not _agree(found[0], other):
                raise Unclear(
                    f"it is a sum divided by {number:g}, which may be the number of examples, or "
                    "of positions that count"
                )
        return found[0]
    return 1.0


def _agree(one: Scale, two: Scale) -> bool:
    """Return whether two scales are equal where both are nonzero."""
    one, two = torch.as_tensor(one).double().cpu(), torch.as_tensor(two).double().cpu()
    return bool((torch.isclose(one, two, rtol=1e-6) | (one == 0) | (two == 0)).all())


def _alike(one: float, two: float) -> bool:
    return abs(one - two) <= 1e-5 * abs(two)
