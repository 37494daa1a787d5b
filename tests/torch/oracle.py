"""The oracle of every layer: a batch of one through plain autograd, in float64.

The loss of an example is its output times weights drawn for it, so these weights are the gradient
of the output, and what a rule has to say can be asked without any hooks.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.factored import Dense, Pair, gradient
from sawlog.torch._layers import Part, Rule, Use

Gradients = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Call:
    """A module, what it is called with, and which of that belongs to single examples.

    Args:
        batch, each: there are ``batch`` examples, each with ``each`` places in a row.
        axis: that of the examples in tensors, and in the output.
        axes: for an argument, by place or keyword: its own axis, or None if it is for all.
        out: the axis of the examples in the output, where it is another one.
        inner: the places of an example are not in a row but ``batch`` apart.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 3
    each: int = 1
    axis: int = 0
    axes: Mapping[int | str, int | None] = dataclasses.field(default_factory=dict)
    out: int | None = None
    inner: bool = False

    @property
    def out_axis(self) -> int:
        return self.axis if self.out is None else self.out

    def of_example(self, b: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a batch with this example alone is called with."""
        args = tuple(self._part(i, value, b) for i, value in enumerate(self.args))
        return args, {name: self._part(name, value, b) for name, value in self.kwargs.items()}

    def _part(self, key: int | str, value: Any, b: int) -> Any:
        axis = self.axes.get(key, self.axis)
        if axis is None or not isinstance(value, Tensor):
            return value
        return self.taken(value, axis, b)

    def taken(self, tensor: Tensor, axis: int, b: int) -> Tensor:
        size = tensor.shape[axis] // self.batch  # attn_mask has one for each head, too
        places = [b + i * self.batch if self.inner else b * size + i for i in range(size)]
        return tensor.index_select(axis, torch.tensor(places))


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def output_weights(call: Call, seed: int = 0) -> Tensor:
    """What the output is multiplied with: the gradient that will come back."""
    with torch.no_grad():
        out = first(copy.deepcopy(call.module)(*call.args, **call.kwargs))
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)


def use_of(call: Call, weights: Tensor) -> Use:
    return Use(call.args, call.kwargs, weights, call.batch, call.axis)


def expected(call: Call, weights: Tensor) -> Gradients:
    """The gradient of each example, ``[batch, *parameter.shape]``, in float64."""
    module = copy.deepcopy(call.module).double()
    found: dict[str, list[Tensor]] = {name: [] for name, _ in module.named_parameters()}
    for b in range(call.batch):
        args, kwargs = call.of_example(b)
        args = tuple(map(_double, args))
        out = first(module(*args, **{name: _double(value) for name, value in kwargs.items()}))
        loss = (out * call.taken(weights, call.out_axis, b).double()).sum()
        parameters = dict(module.named_parameters())
        grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for (name, value), grad in zip(parameters.items(), grads, strict=True):
            found[name].append(torch.zeros_like(value) if grad is None else grad)
    return {name: torch.stack([g.to_dense() for g in grads]) for name, grads in found.items()}


def _double(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value


def with_one(part: Part, pair: Pair) -> Pair:
    """The pair with the bias as one more feature of the inputs, as a watcher adds it."""
    if part.bias is None:
        return pair
    side = getattr(pair, part.inputs)
    assert isinstance(side, Dense)
    return dataclasses.replace(pair, **{part.inputs: dataclasses.replace(side, one=True)})


def parameter_gradients(part: Part, pair: Pair, module: nn.Module) -> Gradients:
    """What a pair says of the parameters of its part, in their shapes."""
    whole = gradient(with_one(part, pair))
    shape = module.get_parameter(part.name).shape
    if part.bias is None:
        return {part.name: whole.reshape(-1, *shape)}
    if part.inputs == "left":
        weight, bias = whole[..., :-1, :], whole[..., -1, :]
    else:
        weight, bias = whole[..., :-1], whole[..., -1]
    bias_shape = module.get_parameter(part.bias).shape
    return {
        part.name: weight.reshape(-1, *shape),
        part.bias: bias.reshape(-1, *bias_shape),
    }


def found(rule: Rule, call: Call, weights: Tensor) -> Gradients:
    """The gradients of each example by a rule, in the shapes of the parameters."""
    parts = rule.parts(call.module)
    pairs = rule.pairs(call.module, use_of(call, weights))
    assert set(pairs) == {part.name for part in parts}
    gradients: Gradients = {}
    for part in parts:
        pair = pairs[part.name]
        assert pair.shape == part.shape, part
        assert pair.batch == call.batch
        assert pair.left.positions == pair.right.positions
        gradients |= parameter_gradients(part, pair, call.module)
    return gradients


def compare(rule: Rule | None, call: Call, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """A rule against the oracle, for all parameters it should speak for."""
    assert rule is not None, f"no rule for {type(call.module).__name__}"
    weights = output_weights(call)
    got, want = found(rule, call, weights), expected(call, weights)
    assert set(got) == set(want)
    for name, value in want.items():
        assert value.shape[0] == call.batch
        torch.testing.assert_close(
            got[name].double(), value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
