"""The fallback for parameters without a layer rule: differentiate their module for each example.

It holds the gradients of all examples at once. Where the autograd graph shows which operations use
a parameter, these are differentiated instead (``torch/_graph/_operations``), which is faster.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from sawlog.errors import ArgumentError
from sawlog.factored import Pair
from sawlog.torch._layers._function import whole_gradients
from sawlog.torch._layers._rule import Part, Rule, Use
from sawlog.torch._layers._tensors import refuse, working_dtype

_SILENCED = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)

Parameters = dict[str, Tensor]


def general(names: Sequence[str] | None = None, *, whole: bool = False) -> Rule:
    """Return the rule that covers any module, by ``torch.func``.

    Tensors that are as long as the gradient along the axis of the examples are split by example;
    all others are shared. The sum over examples is compared with the gradient of the batch, so a
    module that mixes examples, or a tensor that was split by mistake, is an error.

    Args:
        names: the parameters to cover, by their names in the module; by default all of its own.
        whole: whether to cover the parameters of submodules too.
    """
    return GeneralRule(None if names is None else tuple(names), whole)


class GeneralRule(Rule):
    """Return each parameter as a separate matrix; its rows are gradients of the examples."""

    def __init__(self, names: tuple[str, ...] | None, whole: bool) -> None:
        self.names, self.whole = names, whole

    def parts(self, module: nn.Module) -> Sequence[Part]:
        """Return each parameter as a separate part."""
        named = module.named_parameters(recurse=self.whole or self.names is not None)
        return tuple(
            Part(name, whole_matrix(tuple(value.shape)))
            for name, value in named
            if self.names is None or name in self.names
        )

    def pairs(self, module: nn.Module, use: Use) -> Mapping[str, Pair]:
        """Return the gradients of each example.

        Raises:
            ArgumentError: ``vmap`` fails, as with dropout, or the examples are mixed.
        """
        call = _Call(module, use, [part.name for part in self.parts(module)])
        if use.batch == 0:
            empty = {name: value.new_empty(0, *value.shape) for name, value in call.params.items()}
            return _pairs(empty)
        with _quiet(module):
            found = call.for_each()
            call.check(found)
        return _pairs(found)


def whole_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a parameter whose use no rule knows: ``[first axis, all others]``.

    Axes of one element do not count, as the first one of a table of positions:

    >>> whole_matrix((1, 197, 768)), whole_matrix((1, 1, 768)), whole_matrix((12,))
    ((197, 768), (768, 1), (12, 1))
    """
    first = next((size for size in shape if size != 1), 1)
    return first, math.prod(shape) // first if first else 0


def _pairs(gradients: Mapping[str, Tensor]) -> dict[str, Pair]:
    """Return whole gradients ``[batch, *parameter.shape]`` as pairs."""
    return {
        name: whole_gradients(each, whole_matrix(tuple(each.shape[1:])))
        for name, each in gradients.items()
    }


class _Call:
    """One use of a module, as a function of its parameters and its tensor arguments."""

    def __init__(self, module: nn.Module, use: Use, names: Sequence[str]) -> None:
        self.module, self.use = module, use
        self.dtype = working_dtype(use.grad)
        every = {name: self._wide(value.detach()) for name, value in module.named_parameters()}
        self.params = {name: every.pop(name) for name in names}
        self.fixed = every
        self.buffers = {name: self._wide(each) for name, each in module.named_buffers()}
        leaves, self.tree = pytree.tree_flatten((tuple(use.args), dict(use.kwargs)))
        self.leaves = [self._wide(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.grad = self._wide(use.grad)
        self.axis = self._axis() if use.batch else use.axis

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def gradients(self, leaves: Sequence[Any], grad: Tensor) -> Parameters:
        """Return the gradients of the parameters, for a call with these leaves."""
        args, kwargs = pytree.tree_unflatten(list(leaves), self.tree)

        def output(params: Parameters) -> Tensor:
            buffers = {name: each.clone() for name, each in self.buffers.items()}  # may change
            state = {**self.fixed, **buffers, **params}
            out = functional_call(self.module, state, args, kwargs)
            return next(each for each in pytree.tree_leaves(out) if isinstance(each, Tensor))

        backward: Any = vjp(output, self.params)[1]
        found: Parameters = backward(grad)[0]
        return {name: g.to_dense() if g.is_sparse else g for name, g in found.items()}

    def for_each(self) -> Parameters:
        """Return the gradients of the parameters for each example, ``[batch, *shape]``."""
        split = [self._is_split(leaf) for leaf in self.leaves]
        chosen = [leaf for leaf, is_split in zip(self.leaves, split, strict=True) if is_split]

        def one(tensors: Sequence[Tensor]) -> Parameters:
            *parts, grad = map(self._joined, tensors)
            given = iter(parts)
            both = zip(self.leaves, split, strict=True)
            leaves = [next(given) if is_split else leaf for leaf, is_split in both]
            return self.gradients(leaves, grad)

        tensors = [self._split(each) for each in (*chosen, self.grad)]
        try:
            with warnings.catch_warnings():  # the user chose the slow path
                warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                return vmap(one)(tensors)
        except Exception as error:
            if "randomness" in str(error):
                raise self._refuse("it draws random numbers, like dropout in train mode") from error
            return self._one_by_one(one, tensors)

    def _one_by_one(self, one: Any, tensors: Sequence[Tensor]) -> Parameters:
        """Run each example where ``vmap`` fails: recurrent layers, control flow on values."""
        try:
            found = [one([each[b] for each in tensors]) for b in range(self.use.batch)]
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise self._refuse(f"it cannot be run for a single example ({first})") from error
        return {name: torch.stack([each[name] for each in found]) for name in self.params}

    def _refuse(self, why: str) -> ArgumentError:
        hint = "register a rule by `sawlog.torch.register_layer`, or leave this module out"
        return refuse(self.module, f"by the fallback, {why}", hint)

    def check(self, found: Parameters) -> None:
        """Compare the sum over examples with the gradient of the batch."""
        total = self.gradients(self.leaves, self.grad)
        tolerance = torch.finfo(self.dtype).eps ** 0.5
        for name, each in found.items():
            scale = max(float(total[name].norm()), float(each.norm()))
            if not math.isfinite(scale):  # nothing to compare, for example after a float16 overflow
                continue
            if float((each.sum(0) - total[name]).norm()) > tolerance * scale:
                raise self._refuse(
                    f"the gradients of the examples for {name!r} do not add up to that of the "
                    "batch; probably it mixes examples (like BatchNorm in train mode), or draws "
                    "random numbers, or an axis of an argument happens to be as long as there are "
                    "examples"
                )

    def _axis(self) -> int:
        """Return the axis of the examples: the first if the output has no sequence axis."""
        shape, axis = self.grad.shape, self.use.axis
        return axis if len(shape) > axis and shape[axis] == self.use.batch else 0

    def _is_split(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor) or leaf.dim() <= self.axis:
            return False
        return leaf.shape[self.axis] == self.grad.shape[self.axis]

    def _split(self, tensor: Tensor) -> Tensor:
        """Return ``[batch, k, ...]``, if the axis of the examples is ``k`` times the batch."""
        batch = self.use.batch
        if tensor.dim() <= self.axis or tensor.shape[self.axis] % batch:
            raise self._refuse(
                f"a tensor of shape {tuple(tensor.shape)} has no axis of {batch} examples"
            )
        tensor = tensor.movedim(self.axis, 0)
        minor = self.use.axis == 1 if self.use.minor is None else self.use.minor
        if minor:  # flattened from [k, batch]
            return tensor.unflatten(0, (-1, batch)).movedim(1, 0)
        return tensor.unflatten(0, (batch, -1))

    def _joined(self, tensor: Tensor) -> Tensor:
        """Return the tensor of one example, with ``k`` where the axis of the examples was."""
        return tensor.movedim(0, self.axis)


@contextlib.contextmanager
def _quiet(module: nn.Module) -> Iterator[None]:
    """Disable the hooks of a module and its submodules: this is not a call of the user."""
    kept = []
    try:
        for each in module.modules():
            kept.append((each, {name: each.__dict__[name] for name in _SILENCED}))
            each.__dict__.update({name: OrderedDict() for name in _SILENCED})
            if "_compiled_call_impl" in each.__dict__:
                kept[-1][1]["_compiled_call_impl"] = each.__dict__.pop("_compiled_call_impl")
        yield
    finally:
        for each, hooks in kept:
            each.__dict__.update(hooks)
