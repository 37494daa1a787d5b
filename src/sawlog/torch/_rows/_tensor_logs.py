"""Forward and backward logs of one batch: the inputs, outputs and output gradients of layers."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.run_files._log_names import LogName
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._hooks._hooks import LayerCall, first_tensor
from sawlog.torch._layers import FunctionRule, GeneralRule
from sawlog.torch._loss._terms import Scale
from sawlog.torch._model._watched import Unit


class TensorLogs:
    """Keeps the tensors of layer calls, with the examples on the first axis.

    Args:
        batch: the batch.
        forward: what to keep of a forward pass, ``"input"`` or ``"output"``.
    """

    def __init__(self, batch: BatchSpec, forward: str) -> None:
        self._batch, self._input = batch, forward == "input"
        self._lock = threading.Lock()
        self._logs: dict[str, Tensor] = {}
        self._forwards: list[tuple[str, LayerCall, Tensor]] = []
        self._layouts: dict[int, ExampleLayout] = {}
        self._seen: dict[str, int] = {}

    def add_forward(self, call: LayerCall, output: Tensor) -> None:
        """Keep a tensor of a forward pass; :meth:`finish` lays it out."""
        tensor = output
        if self._input:
            found = first_tensor((*call.args, call.kwargs))
            if found is None:
                raise CaptureError(
                    f"The layer {call.unit.name!r} was called without a tensor, so its inputs "
                    "cannot be logged. Hint: leave it out by names=."
                )
            tensor = found
        self._forwards.append((self._name("forward", call.unit), call, tensor.clone()))

    def add_layout(self, call: LayerCall, layout: ExampleLayout | None) -> None:
        """Record where the examples are in the output of a call, as its gradient showed."""
        if layout is not None:
            self._layouts[call.number] = layout

    def add_backward(
        self, call: LayerCall, grad: Tensor, layout: ExampleLayout | None, scale: Scale
    ) -> None:
        """Keep the gradient of the output of a call."""
        self._keep(call, self._name("backward", call.unit), grad, layout, scale)

    def finish(self) -> dict[str, Tensor]:
        """Return all logs by name.

        Forward logs are laid out here, after gradients have shown where the examples are.
        """
        known = any(
            self.guessed(call.unit, tuple(tensor.shape), strict=True) is not None
            for _, call, tensor in self._forwards
        )
        size = self._batch.size
        for name, call, tensor in self._forwards:
            layout = self._layouts.get(call.number)
            if layout is not None and not _has(layout, tensor, size):
                layout = None
            if layout is None:
                layout = self.guessed(call.unit, tuple(tensor.shape), strict=not known)
            if layout is None and tensor.dim() and len(tensor) == 1:  # the same for all examples
                tensor, layout = tensor.expand(size, *tensor.shape[1:]), ExampleLayout(0)
            self._keep(call, name, tensor, layout)
        self._forwards.clear()
        return self._logs

    def guessed(
        self, unit: Unit, shape: tuple[int, ...], strict: bool = False
    ) -> ExampleLayout | None:
        """Return the likely layout of a tensor whose gradient was not seen; None if unknown."""
        size = self._batch.size
        first = getattr(unit.module, "batch_first", None)
        axis = self._batch.axis if first is None else int(not first)
        free = isinstance(unit.rule, (GeneralRule, FunctionRule))  # may return no feature axis
        if len(shape) == 2 and not (free and shape[1] == size):
            axis = 0
        axis = axis if axis < len(shape) else 0
        if not shape or shape[axis] % size or (strict and shape[axis] != size):
            return None
        return ExampleLayout(axis, self._batch.axis == 1)

    def _name(self, kind: str, unit: Unit) -> str:
        """Return the name of a log; a number marks later calls of the same module."""
        name = str(LogName(kind, unit.name))
        with self._lock:
            count = self._seen[name] = self._seen.get(name, 0) + 1
        return str(LogName(kind, unit.name, count))

    def _keep(
        self,
        call: LayerCall,
        name: str,
        tensor: Tensor,
        layout: ExampleLayout | None,
        scale: Scale = 1.0,
    ) -> None:
        size = self._batch.size
        if layout is None:
            raise CaptureError(
                f"{name!r} cannot be logged: which elements of its tensor of shape "
                f"{tuple(tensor.shape)} are those of which of {size} examples is unknown. The "
                f"layer {call.unit.name!r} is probably computed once for all examples, as position "
                "embeddings are, so that its gradient is a sum over them. Hint: leave the layer "
                f'out by names=lambda name: not name.startswith("{call.unit.name}"), or use '
                'log="grad", which has its gradients for each example.'
            )
        each = tensor.shape[layout.axis] // size
        tensor = layout.split(tensor, size)
        if each == 1:
            tensor = tensor.squeeze(layout.axis + 1)
        elif layout.axis:
            tensor = tensor.movedim(layout.axis + 1, 1)
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.float32)
        if not isinstance(scale, float):
            scale = scale.to(tensor).reshape(-1, *(1,) * (tensor.ndim - 1))
        with self._lock:
            self._logs[name] = self._batch.chosen(tensor * scale)


def _has(layout: ExampleLayout, tensor: Tensor, batch: int) -> bool:
    return tensor.dim() > layout.axis and tensor.shape[layout.axis] % batch == 0
