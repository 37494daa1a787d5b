"""Convolutions, as matrix products with the windows that the kernel covers.

For a plain convolution, windows of the inputs are multiplied with the gradients of the outputs. For
a transposed one, windows of the gradients are multiplied with the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sawlog.factored import Dense, Pair, vector
from sawlog.torch._layers._registry import register_layer
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import argument, by_example, own, widened


@register_layer(nn.Conv1d)
@register_layer(nn.Conv2d)
@register_layer(nn.Conv3d)
class ConvRule(Rule):
    """``weight`` is ``[out, in / groups, *kernel]``."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return ``[out, in * kernel]``, or one for each group; the bias is one more column."""
        if not own(module, "weight"):
            return ()
        bias = "bias" if own(module, "bias") else None
        return (Part("weight", _matrix(module), bias=bias),)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return gradients, and windows of the inputs."""
        inputs, grad = _batched(module, use)
        padding = _padding(module)
        if any(padding):
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            inputs = F.pad(inputs, padding, mode=mode)
        left = _factor(grad.flatten(2), module.groups, use)
        return {"weight": Pair(left, _factor(_windows(inputs, module), module.groups, use))}


@register_layer(nn.ConvTranspose1d)
@register_layer(nn.ConvTranspose2d)
@register_layer(nn.ConvTranspose3d)
class ConvTransposeRule(Rule):
    """``weight`` is ``[in, out / groups, *kernel]``; the bias is a part of its own."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return ``[in, out * kernel]``, or one for each group; and the bias."""
        if not own(module, "weight"):
            return ()
        weight = Part("weight", _matrix(module), inputs="left")
        return (weight, *([Part("bias", (module.out_channels, 1))] if own(module, "bias") else []))

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return inputs, and windows of the gradients."""
        inputs, grad = _batched(module, use)
        windows = _windows(F.pad(grad, _cropping(module, inputs, grad)), module)
        left = _factor(inputs.flatten(2), module.groups, use)
        pairs = {"weight": Pair(left, _factor(windows, module.groups, use))}
        if own(module, "bias"):
            pairs["bias"] = vector(by_example(grad.flatten(2).sum(2), use, 1).sum(1))
        return pairs


def _matrix(module: Any) -> tuple[int, ...]:
    first, *rest = module.weight.shape
    groups = module.groups
    return (first, math.prod(rest)) if groups == 1 else (groups, first // groups, math.prod(rest))


def _batched(module: Any, use: Use) -> tuple[Tensor, Tensor]:
    """Return inputs and gradients, ``[n, channels, *space]``; a single input gets a first axis."""
    inputs, grad = widened(argument(use, 0, "input"), use), widened(use.grad, use)
    single = inputs.dim() == 1 + len(module.kernel_size)
    return (inputs[None], grad[None]) if single else (inputs, grad)


def _spans(module: Any) -> list[int]:
    """Return the extent of a window."""
    return [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]


def _padding(module: Any) -> list[int]:
    """Return the padding before and after each axis, in the order of ``F.pad``: last axis first."""
    if module.padding == "valid":
        sides = [(0, 0)] * len(module.kernel_size)
    elif module.padding == "same":
        sides = [((span - 1) // 2, (span - 1) - (span - 1) // 2) for span in _spans(module)]
    else:
        sides = [(padding, padding) for padding in module.padding]
    return [size for side in reversed(sides) for size in side]


def _cropping(module: Any, inputs: Tensor, grad: Tensor) -> list[int]:
    """Return the padding that extends the gradients of a transposed convolution to its windows.

    It is negative where ``output_padding`` or ``output_size`` added positions outside any window.
    """
    sides = []
    sizes = zip(inputs.shape[2:], grad.shape[2:], strict=True)
    for axis, (places, size) in enumerate(sizes):
        before = module.padding[axis]
        reached = (places - 1) * module.stride[axis] + _spans(module)[axis]
        sides.append((before, reached - before - size))
    return [size for side in reversed(sides) for size in side]


def _windows(tensor: Tensor, module: Any) -> Tensor:
    """Return all windows, ``[n, channels * kernel, positions]``, as one contiguous copy."""
    axes = len(module.kernel_size)
    for axis, span in enumerate(_spans(module)):
        tensor = tensor.unfold(2 + axis, span, module.stride[axis])
        tensor = tensor[..., :: module.dilation[axis]]
    places, kernel = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
    tensor = tensor.permute(0, 1, *kernel, *places)
    return tensor.flatten(2 + axes).flatten(1, 1 + axes)


def _factor(tensor: Tensor, groups: int, use: Use) -> Dense:
    """Reshape ``[n, groups * features, positions]`` to ``[batch, positions, groups, features]``."""
    if groups == 1:
        return Dense(by_example(tensor.transpose(1, 2), use, 1, axis=0))
    split = tensor.unflatten(1, (groups, -1)).permute(0, 3, 1, 2)
    return Dense(by_example(split, use, 2, axis=0))
