"""Hooks on the modules of a model for the time of one batch.

A hook on a module sees its inputs, and puts a hook on the tensor it returns; that one sees the
gradient. What belongs to a call is held by that tensor alone, so that it goes away with the graph:
a forward pass that is run again for gradient checkpointing, whose graph is never walked, leaves
nothing behind, and every gradient is seen exactly once.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sawlog.errors import CaptureError
from sawlog.torch._watched import Unit

Forward = Callable[[Unit, tuple[Any, ...], Mapping[str, Any], Tensor], None]
Backward = Callable[[Unit, tuple[Any, ...], Mapping[str, Any], Tensor], None]


class Hooks:
    """Watches units: calls ``forward`` for each call of a module, and ``backward`` for each
    gradient of its output.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        check: Callable[[Unit, tuple[Any, ...], Tensor], int | None],
        forward: Forward | None,
        backward: Backward | None,
    ) -> None:
        self._units, self._check = units, check
        self._forward, self._backward = forward, backward
        self.edges: list[GradientEdge] = []
        self.calls = 0
        self.gradients = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch for the time of a ``with``. Compiled models run as they were written meanwhile."""
        handles = [
            unit.module.register_forward_hook(
                functools.partial(self._called, unit), with_kwargs=True
            )
            for unit in self._units
        ]
        try:
            with _nothing_compiled():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self.edges.clear()

    def _called(
        self, unit: Unit, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> Tensor | None:
        del module
        tensor = first_tensor(output)
        if tensor is None:
            raise CaptureError(
                f"The layer {unit.name!r} ({type(unit.module).__name__}) returned no tensor but "
                f"{type(output).__name__}, so its gradient cannot be watched. Hint: leave it out "
                "by names=."
            )
        shared = self._check(unit, args, tensor)
        self.calls += 1
        if shared is not None and tensor is output:
            # One output for all examples, as of a position embedding, would bring back the sum of
            # their gradients. Said to be that of each, the values stay the same.
            tensor, args = expanded(tensor, shared), expanded(args, shared)
            kwargs = expanded(kwargs, shared)
        if self._forward is not None and not in_backward():
            self._forward(unit, args, kwargs, tensor)
        if self._backward is None or not tensor.requires_grad:
            return None
        args, kwargs = _detached(args), _detached(kwargs)
        versions = [(each, each._version) for each in _tensors((args, kwargs))]
        tensor.register_hook(functools.partial(self._came_back, unit, args, kwargs, versions))
        if not in_backward():
            self.edges.append(get_gradient_edge(tensor))
        return tensor if shared is not None else None

    def _came_back(
        self, unit: Unit, args: Any, kwargs: Any, versions: list[tuple[Tensor, int]], grad: Tensor
    ) -> None:
        if any(tensor._version != version for tensor, version in versions):
            raise CaptureError(
                f"An input of the layer {unit.name!r} was changed in place after the layer had "
                "used it, so the gradient of its parameters cannot be known. Hint: look for "
                "inplace=True, or operations such as x += y, after this layer."
            )
        self.gradients += 1
        assert self._backward is not None
        with torch.no_grad(), torch.autocast(grad.device.type, enabled=False):
            self._backward(unit, args, kwargs, grad.detach())


def _nothing_compiled() -> contextlib.AbstractContextManager[Any]:
    """Compiled code does not call hooks; where there is none, this takes no time."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def in_backward() -> bool:
    """Whether a backward pass is under way: a forward pass is then run again for it."""
    return bool(torch._C._current_graph_task_id() != -1)


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor of what a module returned."""
    return next(iter(_tensors(output)), None)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


def expanded(value: Any, batch: int) -> Any:
    """What is there once for all examples, ``[1, ...]``, as it is for each."""
    if isinstance(value, Tensor):
        return value.expand(batch, *value.shape[1:]) if value.ndim and len(value) == 1 else value
    if isinstance(value, Mapping):
        return {key: expanded(each, batch) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(expanded(each, batch) for each in value)
    return value


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _detached(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_detached(each) for each in value)
    return value


def last_edges(loss: Tensor, edges: Sequence[GradientEdge]) -> list[GradientEdge]:
    """Those edges from which the backward pass of ``loss`` goes on to no other of them.

    Walking to these, it passes all of them, and computes nothing that is not needed for them.
    """
    watched: dict[Any, list[GradientEdge]] = {}
    for edge in edges:
        watched.setdefault(edge.node, []).append(edge)
    found: dict[Any, bool] = {}  # whether a watched node is at or below a node
    last: list[GradientEdge] = []
    stack: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    while stack:
        node, done = stack.pop()
        if node is None or (node in found and not done):
            continue
        below = [each for each, _ in node.next_functions if each is not None]
        if not done:
            found[node] = False
            stack.append((node, True))
            stack.extend((each, False) for each in below)
            continue
        inside = any(found.get(each, False) for each in below)
        if node in watched and not inside:
            last.extend(watched[node])
        found[node] = inside or node in watched
    return last
