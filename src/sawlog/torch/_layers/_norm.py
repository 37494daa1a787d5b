"""Normalisation layers: per-example gradients of the scale and the shift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sawlog.factored import Pair, vector
from sawlog.torch._layers._registry import register_layer
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import argument, by_example, own, refuse, widened


class _NormRule(Rule):
    """``output = normalized * weight + bias``; a subclass normalizes."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return the scale and the shift, each a vector."""
        names = [name for name in ("weight", "bias") if own(module, name)]
        return tuple(Part(name, (getattr(module, name).numel(), 1)) for name in names)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return sums over positions of gradients, times the normalized inputs for the scale."""
        grad = widened(use.grad, use)
        pairs = {}
        if own(module, "weight"):
            inputs = widened(argument(use, 0, self.called(module)), use)
            product = grad * self.normalized(module, inputs)
            pairs["weight"] = vector(self.summed(module, product, use))
        if own(module, "bias"):
            pairs["bias"] = vector(self.summed(module, grad, use))
        return pairs

    def called(self, module: Any) -> str:
        """Return the name of the argument with the inputs."""
        return "input"

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return the inputs as they are before scale and shift."""
        raise NotImplementedError

    def summed(self, module: Any, tensor: Tensor, use: Use) -> Tensor:
        """Return ``[batch, n]``: sums over all axes except those of the parameters."""
        features = len(module.normalized_shape)
        return by_example(tensor, use, features).sum(1).flatten(1)


@register_layer(nn.LayerNorm)
class LayerNormRule(_NormRule):
    """Normalizes over the last axes."""

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs with mean 0 and variance 1."""
        return F.layer_norm(inputs, module.normalized_shape, eps=module.eps)


@register_layer(nn.RMSNorm)
class RMSNormRule(_NormRule):
    """Normalizes over the last axes, without a shift."""

    def called(self, module: Any) -> str:
        """Return the name of the argument with the inputs."""
        return "x"

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs with mean square 1."""
        return F.rms_norm(inputs, module.normalized_shape, eps=module.eps)


class _ChannelRule(_NormRule):
    """Inputs ``[n, channels, *space]``, parameters ``[channels]``."""

    def summed(self, module: Any, tensor: Tensor, use: Use) -> Tensor:
        """Return ``[batch, channels]``."""
        places = tensor.unsqueeze(-1).flatten(2).sum(2)
        return by_example(places, use, 1).sum(1)


@register_layer(nn.GroupNorm)
class GroupNormRule(_ChannelRule):
    """Normalizes over groups of channels and all positions."""

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs with mean 0 and variance 1."""
        return F.group_norm(inputs, module.num_groups, eps=module.eps)


@register_layer(nn.InstanceNorm1d)
@register_layer(nn.InstanceNorm2d)
@register_layer(nn.InstanceNorm3d)
class InstanceNormRule(_ChannelRule):
    """Normalizes over all positions of each channel."""

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return the pairs; refuse a single input without an axis of examples."""
        if use.grad.dim() == module._get_no_batch_dim():
            raise refuse(module, "it was called without an axis of examples", "add it by `x[None]`")
        return super().pairs(module, use)

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs with mean 0 and variance 1, or by running statistics in eval mode."""
        if module.training or module.running_mean is None:
            return F.instance_norm(inputs, eps=module.eps)
        return _by_running_statistics(module, inputs)


@register_layer(nn.BatchNorm1d)
@register_layer(nn.BatchNorm2d)
@register_layer(nn.BatchNorm3d)
@register_layer(nn.SyncBatchNorm)
class BatchNormRule(_ChannelRule):
    """Normalizes by the running statistics; covered in eval mode only."""

    def parts(self, module: Any) -> Sequence[Part]:
        """Return the scale and the shift, each a vector."""
        self._check(module)
        return super().parts(module)

    def pairs(self, module: Any, use: Use) -> Mapping[str, Pair]:
        """Return the pairs; refuse train mode."""
        self._check(module)
        return super().pairs(module, use)

    def normalized(self, module: Any, inputs: Tensor) -> Tensor:
        """Return inputs normalized by the running statistics."""
        return _by_running_statistics(module, inputs)

    def _check(self, module: Any) -> None:
        if module.running_mean is None:
            raise refuse(
                module,
                "without running statistics it mixes the examples of a batch in any mode, so "
                "they have no gradients of their own",
                "create it with track_running_stats=True, or use GroupNorm",
            )
        if module.training:
            raise refuse(
                module,
                "in train mode it mixes the examples of a batch, so they have no gradients of "
                "their own",
                "call `.eval()` on it (its parameters are still trained), or use GroupNorm",
            )


def _by_running_statistics(module: Any, inputs: Tensor) -> Tensor:
    mean, variance = (s.to(inputs.dtype) for s in (module.running_mean, module.running_var))
    shape = (-1, *(1,) * (inputs.dim() - 2))
    return (inputs - mean.view(shape)) * (variance + module.eps).rsqrt().view(shape)
