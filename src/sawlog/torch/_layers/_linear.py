"""Layers that are one matrix product: Linear, Bilinear, and ``Conv1D`` of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from sawlog.factored import Dense, Pair
from sawlog.torch._layers._registry import register_layer
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import argument, by_example, own, widened


def _bias(module: nn.Module) -> str | None:
    return "bias" if own(module, "bias") else None


@register_layer(nn.Linear)
class LinearRule(Rule):
    """``weight`` is ``[out, in]``: gradients of the outputs times inputs."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return one matrix, with the bias as one more column."""
        if not own(module, "weight"):
            return ()
        return (Part("weight", tuple(module.weight.shape), bias=_bias(module)),)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return gradients and inputs."""
        inputs = widened(argument(use, 0, "input"), use)
        left = by_example(widened(use.grad, use), use, 1)
        return {"weight": Pair(Dense(left), Dense(by_example(inputs, use, 1)))}


@register_layer("transformers.pytorch_utils.Conv1D")
class Conv1DRule(Rule):
    """``weight`` is ``[in, out]``: inputs times gradients of the outputs."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return one matrix, with the bias as one more row."""
        if not own(module, "weight"):
            return ()
        shape = tuple(module.weight.shape)
        return (Part("weight", shape, bias=_bias(module), inputs="left"),)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return inputs and gradients."""
        inputs = widened(argument(use, 0, "x"), use)
        right = by_example(widened(use.grad, use), use, 1)
        return {"weight": Pair(Dense(by_example(inputs, use, 1)), Dense(right))}


@register_layer(nn.Bilinear)
class BilinearRule(Rule):
    """``weight`` is ``[out, in1, in2]``: a linear layer on the products of two inputs."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return one matrix ``[out, in1 * in2]``, with the bias as one more column."""
        if not own(module, "weight"):
            return ()
        rows, one, two = module.weight.shape
        return (Part("weight", (rows, one * two), bias=_bias(module)),)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return gradients, and the products of the inputs."""
        one = by_example(widened(argument(use, 0, "input1"), use), use, 1)
        two = by_example(widened(argument(use, 1, "input2"), use), use, 1)
        left = by_example(widened(use.grad, use), use, 1)
        products = (one[..., :, None] * two[..., None, :]).flatten(2)
        return {"weight": Pair(Dense(left), Dense(products))}
