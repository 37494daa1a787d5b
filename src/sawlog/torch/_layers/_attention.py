"""``nn.MultiheadAttention``: four linear layers, with the attention between them recomputed.

The module calls no other module, so hooks do not see its queries, keys, values or head outputs.
These are recomputed from its inputs, with a small graph from queries, keys and values to the
output, which gives their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sawlog.factored import Dense, Pair, vector
from sawlog.torch._layers._registry import register_layer
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import argument, by_example, own, refuse, widened

_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


@register_layer(nn.MultiheadAttention)
class AttentionRule(Rule):
    """Covers all parameters, including those of ``out_proj``.

    ``in_proj_weight`` consists of three matrices with separate inputs, so it has three groups.
    If queries and keys differ in length, the shorter ones are padded with zeros.

    The rule uses the gradient of the attention output; it does not see a loss on attention weights.
    """

    whole = True

    def parts(self, module: Any) -> Sequence[Part]:
        """Return the projections with their biases, and ``bias_k``, ``bias_v``."""
        _check(module)
        size, parts = module.embed_dim, []
        bias = own(module, "in_proj_bias")
        if own(module, "in_proj_weight"):
            named = "in_proj_bias" if bias else None
            parts.append(Part("in_proj_weight", (3, size, size), bias=named))
        elif own(module, *_SEPARATE):
            parts += [Part(name, tuple(getattr(module, name).shape)) for name in _SEPARATE]
            parts += [Part("in_proj_bias", (3 * size, 1))] if bias else []
        parts += [Part(name, (size, 1)) for name in ("bias_k", "bias_v") if own(module, name)]
        if own(module.out_proj, "weight"):
            named = "out_proj.bias" if own(module.out_proj, "bias") else None
            parts.append(Part("out_proj.weight", (size, size), bias=named))
        return tuple(parts)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return for each projection the gradients of its outputs, and its inputs."""
        _check(module)
        inputs = _inputs(module, use)
        grad = _examples_first(widened(use.grad, use), module)
        heads, grads = _recomputed(module, use, inputs, grad)
        left, right = (by_example(each, use, 1, axis=0) for each in (grad, heads))
        pairs = {"out_proj.weight": Pair(Dense(left), Dense(right))}
        pairs |= _projections(module, use, inputs, grads)
        for name, each in (("bias_k", grads.bias_k), ("bias_v", grads.bias_v)):
            if each is not None:
                pairs[name] = vector(by_example(each, use, 1, axis=0).sum(1))
        return pairs


class _Grads(NamedTuple):
    """Return gradients of queries, keys, values ``[n, length, embed]``, and of their biases."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None


def _check(module: Any) -> None:
    if module.training and module.dropout > 0:
        raise refuse(
            module,
            f"in train mode its dropout of {module.dropout} cannot be repeated afterwards",
            "create it with dropout=0, or call `.eval()` on it",
        )


def _inputs(module: Any, use: Use) -> list[Tensor]:
    """Return query, key and value, ``[n, length, features]``; the same object if they are equal."""
    given = [argument(use, i, name) for i, name in enumerate(("query", "key", "value"))]
    if given[0].dim() != 3:
        raise refuse(module, "it was called without an axis of examples", "add it by `x.unsqueeze`")
    made = {_place(each): _examples_first(widened(each, use), module) for each in given}
    return [made[_place(each)] for each in given]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key of the memory of a tensor, equal for views of the same elements."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _examples_first(tensor: Tensor, module: Any) -> Tensor:
    return tensor if module.batch_first else tensor.transpose(0, 1)


def _projections(module: Any, use: Use, inputs: Sequence[Tensor], grads: _Grads) -> dict[str, Pair]:
    """Return the pairs of the three input projections."""
    lefts = [by_example(each, use, 1, axis=0) for each in grads[:3]]
    if module.in_proj_weight is None:
        rights = [by_example(each, use, 1, axis=0) for each in inputs]
        sides = zip(_SEPARATE, lefts, rights, strict=True)
        pairs = {name: Pair(Dense(left), Dense(right)) for name, left, right in sides}
        if module.in_proj_bias is not None:
            pairs["in_proj_bias"] = vector(torch.cat([left.sum(1) for left in lefts], dim=1))
        return pairs
    if inputs[0] is inputs[1] is inputs[2]:  # self-attention: no copies
        right = by_example(inputs[0], use, 1, axis=0).unsqueeze(2).expand(-1, -1, 3, -1)
    else:
        right = _stacked([by_example(each, use, 1, axis=0) for each in inputs])
    return {"in_proj_weight": Pair(Dense(_stacked(lefts)), Dense(right))}


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return ``[batch, longest, 3, n]``, padded with zeros."""
    longest = max(each.shape[1] for each in tensors)
    return torch.stack([F.pad(t, (0, 0, 0, longest - t.shape[1])) for t in tensors], dim=2)


def _recomputed(
    module: Any, use: Use, inputs: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor, _Grads]:
    """Return the head outputs, ``[n, length, embed]``, and the gradients of their inputs."""
    count = inputs[0].shape[0]
    with torch.no_grad():
        leaves = [*_projected(module, use, inputs)]
        for bias in (module.bias_k, module.bias_v):
            if bias is not None:
                leaves.append(widened(bias.detach(), use).expand(count, 1, -1).squeeze(1))
        upstream = grad @ widened(module.out_proj.weight.detach(), use)
    with torch.enable_grad():
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        heads = _attended(module, use, *leaves)
        grads = torch.autograd.grad(heads, leaves, upstream)
    return heads.detach(), _Grads(*grads)


def _projected(module: Any, use: Use, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return queries, keys and values."""
    if module.in_proj_weight is None:
        weights = [getattr(module, name) for name in _SEPARATE]
    else:
        weights = list(module.in_proj_weight.chunk(3))
    bias = module.in_proj_bias
    biases = [None] * 3 if bias is None else [widened(b, use) for b in bias.chunk(3)]
    triples = zip(inputs, weights, biases, strict=True)
    return [F.linear(each, widened(weight, use), b) for each, weight, b in triples]


def _attended(
    module: Any,
    use: Use,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
) -> Tensor:
    """Compute what ``F.multi_head_attention_forward`` does between its projections."""
    if bias_k is not None and bias_v is not None:
        k, v = torch.cat([k, bias_k[:, None]], 1), torch.cat([v, bias_v[:, None]], 1)
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    q, k, v = (x.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    mask, causal = _mask(module, use, q, k.shape[2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return out.transpose(1, 2).flatten(2)


def _mask(module: Any, use: Use, q: Tensor, source: int) -> tuple[Tensor | None, bool]:
    """Return the mask ``[n or 1, heads or 1, queries, keys]`` to add, and whether it is causal.

    As in the module itself, ``is_causal`` only applies if nothing else needs the mask.
    """
    padding = argument(use, 3, "key_padding_mask")
    needs_weights = argument(use, 4, "need_weights", True)
    mask = argument(use, 5, "attn_mask")
    if argument(use, 7, "is_causal", False) and padding is None and not needs_weights:
        return None, True
    total = None
    if mask is not None:
        mask = _additive(mask, q.dtype)
        split = mask.unflatten(0, (-1, module.num_heads)) if mask.dim() == 3 else mask[None, None]
        total = F.pad(split, (0, source - mask.shape[-1]))
    if padding is not None:
        padding = F.pad(_additive(padding, q.dtype), (0, source - padding.shape[-1]))
        padding = padding[:, None, None]
        total = padding if total is None else total + padding
    return total, False


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores; True in a boolean mask excludes a position."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
