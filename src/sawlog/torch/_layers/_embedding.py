"""Layers that look up rows of a table: Embedding, EmbeddingBag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair
from sawlog.torch._layers._registry import register_layer
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import argument, by_example, own, refuse, widened


def _check(module: Any) -> None:
    if module.max_norm is not None:
        raise refuse(
            module,
            "with max_norm its table depends on the examples of the batch",
            "create it without max_norm",
        )
    if module.scale_grad_by_freq:
        raise refuse(
            module,
            "with scale_grad_by_freq the gradient of an example depends on the others of its batch",
            "create it without scale_grad_by_freq",
        )


class _TableRule(Rule):
    """``weight`` is ``[rows, features]``: one-hot row ids times gradients of the outputs."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return the table."""
        _check(module)
        if not own(module, "weight"):
            return ()
        return (Part("weight", tuple(module.weight.shape), inputs="left"),)


@register_layer(nn.Embedding)
class EmbeddingRule(_TableRule):
    """Looks up one row for each id; that of ``padding_idx`` has no gradient.

    Ids ``[1, positions]`` or ``[positions]`` are shared by all examples if the output is broadcast
    to them, and the gradient is ``[batch, positions, features]``.
    """

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return ids and gradients."""
        _check(module)
        ids = argument(use, 0, "input")
        if use.grad.shape[:-1] != ids.shape:
            ids = ids.expand(use.grad.shape[:-1])
        if ids.dim() == 1 and len(ids) != use.batch:  # [positions], more likely than [batch * k]
            raise ArgumentError(
                f"An Embedding was called with ids of shape {tuple(ids.shape)}, which is not one "
                f"for each of {use.batch} examples. Probably they are the same for all examples, "
                "like positions, and the output is broadcast. Hint: call it with the examples as "
                f"first axis, by `ids.expand({use.batch}, -1)`, or leave this module out."
            )
        rows = by_example(ids, use, 0)
        right = by_example(widened(use.grad, use), use, 1)
        pair = Pair(OneHot(rows, module.num_embeddings), Dense(right))
        return {"weight": _without(pair, rows, module.padding_idx)}


@register_layer(nn.EmbeddingBag)
class EmbeddingBagRule(_TableRule):
    """Sums or means of rows, without those of ``padding_idx``."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return the table."""
        if module.mode == "max":
            hint = "use mode='sum' or 'mean', or leave this module out by names="
            raise refuse(module, "mode='max' is not a sum of rows", hint)
        return super().parts(module)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return ids with their weights, and for each the gradient of its bag."""
        _check(module)
        ids, weights = _bags(module, use)
        if module.padding_idx is not None:
            weights = weights * (ids != module.padding_idx)
        if module.mode == "mean":
            weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
        grad = widened(use.grad, use)[:, None, :].expand(-1, ids.shape[1], -1)
        ids, weights = (by_example(each, use, 0, axis=0) for each in (ids, weights))
        left = OneHot(ids, module.num_embeddings, weights)
        return {"weight": Pair(left, Dense(by_example(grad, use, 1, axis=0)))}


def _without(pair: Pair, ids: Tensor, padding: int | None) -> Pair:
    return pair if padding is None else pair.masked(ids != padding)


def _bags(module: Any, use: Use) -> tuple[Tensor, Tensor]:
    """Return ids and weights, ``[bags, longest]``, with weights 0 after the end of a bag."""
    ids = argument(use, 0, "input")
    offsets, weights = argument(use, 1, "offsets"), argument(use, 2, "per_sample_weights")
    weights = torch.ones_like(ids, dtype=torch.float32) if weights is None else weights
    weights = widened(weights, use)
    if ids.dim() == 2:
        return ids, weights
    if module.include_last_offset:
        starts, ends = offsets[:-1], offsets[1:]
    else:
        starts, ends = offsets, torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
    longest = int((ends - starts).max()) if len(starts) else 0
    places = starts[:, None] + torch.arange(longest, device=offsets.device)
    inside = places < ends[:, None]
    places = places.clamp(max=max(len(ids) - 1, 0))
    return ids[places], weights[places] * inside
