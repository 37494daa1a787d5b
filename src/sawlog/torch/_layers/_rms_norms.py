"""RMSNorm layers of other packages, recognized by what they compute.

Most language models define an RMSNorm class of their own. Their names say little, so each candidate
is called once, on a few random vectors: it is an RMSNorm if its output is the normalized input
times the weight, or times ``1 + weight``.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.torch._layers._norm import RMSNormRule
from sawlog.torch._layers._registry import recognizer
from sawlog.torch._layers._rule import Rule, Use
from sawlog.torch._layers._tensors import by_example

_TOLERANCE = 1e-4  # many of them compute in float32


class OtherRMSNormRule(RMSNormRule):
    """Normalizes over the last axis, without a shift."""

    def __init__(self, argument: str, eps: float) -> None:
        self._argument, self._eps = argument, eps

    def called(self, module: Any) -> str:
        """Return the name of the argument with the inputs."""
        return self._argument

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs with mean square 1 over the last axis."""
        return _normalized(inputs, self._eps)

    def summed(self, module: Any, tensor: Tensor, use: Use) -> Tensor:
        """Return ``[batch, n]``."""
        return by_example(tensor, use, 1).sum(1)


_rule = functools.cache(OtherRMSNormRule)


@recognizer
def rms_norm_rule(module: nn.Module) -> Rule | None:
    """Return a rule for a module that computes as RMSNorm does; None for any other."""
    weight = module._parameters.get("weight")
    arguments = list(inspect.signature(type(module).forward).parameters)[1:]
    if (
        len(module._parameters) != 1
        or weight is None
        or weight.ndim != 1
        or len(arguments) != 1
        or any(True for _ in module.children())
    ):
        return None
    eps = _eps_of(module, len(weight))
    return None if eps is None else _rule(arguments[0], eps)


def _eps_of(module: nn.Module, size: int) -> float | None:
    """Return the attribute with which a module computes as RMSNorm does, or None."""
    generator = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(2, 4, size, generator=generator, dtype=torch.float64)
    inputs = inputs * torch.tensor([[1.0], [1.0], [1e-3], [1e-3]], dtype=torch.float64)
    clone = object.__new__(type(module))  # with another weight; fully_shard replaces cls.__new__
    clone.__dict__.update(vars(module))
    try:
        outputs = [_called(clone, inputs, w) for w in (torch.zeros_like(weight[0]), weight[0])]
    except Exception:  # a forward of any kind, which may need more than this
        return None
    if any(not isinstance(out, Tensor) or out.shape != inputs.shape for out in outputs):
        return None
    scaled = outputs[1].double() - outputs[0].double()
    for eps in vars(module).values():
        if type(eps) is float and eps >= 0:
            expected = weight[0] * _normalized(inputs, eps)
            if bool(((scaled - expected).abs() <= _TOLERANCE * expected.abs().max()).all()):
                return eps
    return None


@torch.no_grad()
def _called(clone: nn.Module, inputs: Tensor, weight: Tensor) -> Any:
    clone.__dict__["_parameters"] = {"weight": nn.Parameter(weight)}
    return type(clone).forward(clone, inputs)


def _normalized(inputs: Tensor, eps: float) -> Tensor:
    return inputs * (inputs.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
