"""Hooks on the modules of a model for the time of one batch.

A forward hook sees the inputs of a module, and registers a hook on the tensor that the module
returns, which sees the gradient. Only that tensor holds the data of the call, so it is freed with
the graph: a forward pass that gradient checkpointing runs again, and whose graph is never used,
leaves nothing behind, and every gradient is seen exactly once. Outputs are never replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrize import ParametrizationList

from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._compiled._region import CallTemplate, CompiledCall, RegionOptions
from sawlog.torch._compiled._regions import BatchRegions
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._model._watched import Unit, Watched


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a watched module; all tensors are detached.

    Args:
        number: the number of the call in the batch, from 0.
        unit: the module.
        args, kwargs: its arguments.
        output: the shape of its output.
        of_inputs: none of its arguments requires a gradient, so they are inputs of the model.
    """

    number: int
    unit: Unit
    args: Any
    kwargs: Any
    output: tuple[int, ...]
    of_inputs: bool = False


class _Hook:
    """A hook on a module, of which a copy of the module has a copy that does nothing."""

    def __init__(self, call: Callable[..., None], of: Any) -> None:
        self._call, self._of = call, of

    def __call__(self, *args: Any) -> None:
        self._call(self._of, *args)

    def __reduce__(self) -> Any:
        return _Hook, (_nothing, None)


def _nothing(*args: Any) -> None:
    del args


OnTensor = Callable[[LayerCall, Tensor], None]
"""Receives a call, and its output or the gradient of its output."""


class Hooks:
    """Reports each call of a watched module, and each gradient of its output.

    Args:
        watched: the modules.
        batch: the number of examples.
        forward: receives calls and outputs; None if they are not logged.
        backward: whether gradients are captured.
    """

    def __init__(
        self, watched: Watched, batch: int, forward: OnTensor | None, backward: bool
    ) -> None:
        self._watched, self._batch = watched, batch
        self._forward, self._backward = forward, backward
        self.listener: OnTensor | None = None
        self.quiet = False
        self.reentrant = False
        self.edges: list[GradientEdge] = []
        self.computed_weights: list[Any] = []
        """The nodes that computed the weights of ``torch.nn.utils.parametrize``."""
        self.calls: list[str] = []
        self.axes: list[tuple[int, ...]] = []
        self.dtypes: set[torch.dtype] = set()
        self.probes: list[Tensor] = []
        """Leaves of compiled regions whose gradients are those of layer outputs."""
        self.regions: BatchRegions | None = None
        self._handles: frozenset[int] = frozenset()
        self.logs_only = False
        """Whether nothing but logs is computed, so that parameters need no gradients."""
        self._templates: list[CallTemplate | None] = []
        self.recorder: Recorder | None = None
        """Records the operations of the batch, if they are."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hooks inside the ``with``, where compiled models run eagerly."""
        handles = [
            unit.module.register_forward_hook(_Hook(self._on_call, unit), with_kwargs=True)
            for unit in self._watched.units
        ]
        everywhere: Any = torch.nn.modules.module._global_forward_hooks
        handles += [
            unit.module.register_forward_hook(_Hook(self._before_hooks, unit), prepend=True)
            for unit in self._watched.units
            if len(unit.module._forward_hooks) > 1 and not everywhere
        ]
        if everywhere:  # of the program; they run before those of a module
            units = {id(unit.module): unit for unit in self._watched.units}
            first = register_module_forward_hook(_Hook(self._before_all_hooks, units))
            everywhere.move_to_end(first.id, last=False)
            handles.append(first)
        if self._batch > 1:
            handles += [
                norm.register_forward_hook(_Hook(self._on_norm, name))
                for name, norm in self._watched.norms
            ]
        self._handles = frozenset(handle.id for handle in handles)
        try:
            with contextlib.ExitStack() as stack:
                regions = self._watched.regions
                if regions and not is_eager():
                    self.regions = stack.enter_context(regions.installed(self))
                stack.enter_context(_eager())
                yield
        finally:
            for handle in handles:
                handle.remove()
            self.edges.clear()
            self.computed_weights.clear()
            self.probes.clear()

    @contextlib.contextmanager
    def recording(self, recorder: Recorder | None) -> Iterator[None]:
        """Report layer calls to a recorder, and which operations are those of the model.

        Layers that are not watched count as well.
        """
        self.recorder, model = recorder, self._watched.model
        if recorder is None or self.regions is not None or model is None:
            yield
            return
        starts: list[int] = []
        handles = [
            model.register_forward_pre_hook(
                _Hook(self._on_start, starts), prepend=True, with_kwargs=True
            ),
            model.register_forward_hook(_Hook(self._on_end, starts), always_call=True),
        ]
        units = {id(unit.module) for unit in self._watched.units}
        others = {id(each) for each in model.modules() if each._parameters} - units
        handles += self._hooks_on(others, model)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks_on(self, others: Set[int], model: nn.Module) -> list[Any]:
        """Return hooks on layers that are not watched, which run before those of the program."""
        hook = _Hook(self._on_other, others)
        if not others or self._watched.regions is not None:  # compiled modules warn of a global one
            own = [each for each in model.modules() if id(each) in others]
            return [each.register_forward_hook(hook, prepend=True) for each in own]
        # A hook on a module would change what some modules of PyTorch compute without gradients.
        first = register_module_forward_hook(hook)
        everywhere: Any = torch.nn.modules.module._global_forward_hooks
        everywhere.move_to_end(first.id, last=False)
        return [first]

    def _on_start(self, starts: list[int], module: Any, args: Any, kwargs: Any) -> None:
        """Note that the model is called."""
        del module
        if self.recorder is not None and self.recorder.tape is not None:
            tape = self.recorder.tape
            starts.append(len(tape.operations))
            tape.arguments.update(map(memory_of, _tensors((args, kwargs))))
            for tensor in _tensors((args, kwargs)):
                self.recorder.mark_before(tensor)

    def _on_other(self, others: Set[int], module: nn.Module, args: Any, output: Any) -> None:
        """Mark the output of a module, if it is a layer that is not watched."""
        del args
        tensor = first_tensor(output) if id(module) in others else None
        if self.recorder is not None and tensor is not None and not in_backward():
            self.recorder.mark_before(tensor)

    def _on_end(self, starts: list[int], *args: Any) -> None:
        """Note that a call of the model ended, perhaps by an exception."""
        del args
        if starts and self.recorder is not None and self.recorder.tape is not None:
            now = len(self.recorder.tape.operations)
            self.recorder.tape.model_calls.append(range(starts.pop(), now))

    @contextlib.contextmanager
    def listening(self, listener: OnTensor | None) -> Iterator[None]:
        """Pass gradients to ``listener`` inside the ``with``; outside they are ignored."""
        before, self.listener = self.listener, listener
        quiet, self.quiet = self.quiet, not self.reentrant
        try:
            yield
        finally:
            self.listener, self.quiet = before, quiet

    def _on_norm(self, name: str, module: Any, args: Any, output: Any) -> None:
        """Refuse a batch norm that was called in train mode."""
        del args, output
        if not module.training and module.running_mean is not None:
            return
        raise ArgumentError(
            f"The layer {name!r} ({type(module).__name__}) mixes the examples of a batch in train "
            "mode, or without running statistics, so they have no gradients of their own. "
            "Hint: call `.eval()` on it (its parameters are still trained), or use GroupNorm."
        )

    def _before_hooks(self, unit: Unit, module: nn.Module, args: Any, output: Any) -> None:
        """Mark an output as it is before hooks of the program, which may join its examples."""
        del module, args
        tensor = first_tensor(output)
        if self.recorder is not None and tensor is not None and not in_backward():
            self.recorder.mark(-1 - len(self.calls), id(unit), tensor)

    def _before_all_hooks(
        self, units: Mapping[int, Unit], module: nn.Module, args: Any, output: Any
    ) -> None:
        unit = units.get(id(module))
        if unit is not None:
            self._before_hooks(unit, module, args, output)

    def _on_call(
        self, unit: Unit, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        del module
        again = in_backward()
        if (again or self.quiet) and not self.reentrant:
            return
        tensor = first_tensor(output)
        if tensor is None:
            raise CaptureError(
                f"The layer {unit.name!r} ({type(unit.module).__name__}) returned "
                f"{type(output).__name__}, not a tensor, so its gradient cannot be captured. Hint: "
                "leave it out by names=."
            )
        if tensor.is_nested:
            raise CaptureError(
                f"The layer {unit.name!r} ({type(unit.module).__name__}) returned a nested tensor, "
                "whose examples cannot be separated. Hint: pad the sequences, and mask what was "
                "added; or leave the layer out by names=."
            )
        given = [each.requires_grad for each in _tensors((args, kwargs))]
        args, kwargs = _detached(args), _detached(kwargs)
        of_inputs = bool(given) and not any(given)
        call = LayerCall(len(self.calls), unit, args, kwargs, tuple(tensor.shape), of_inputs)
        self.calls.append(unit.name)
        self.dtypes.add(tensor.dtype)
        self.axes.append(tuple([i for i, n in enumerate(call.output) if n == self._batch]))
        if self.recorder is not None:
            self.recorder.mark(call.number, id(unit), tensor)
        if self.regions is not None:
            self._templates.append(self._template(call, output, tensor))
        if self._forward is not None and not again:
            self._forward(call, tensor.detach())
        if not self._backward or not tensor.requires_grad:
            return
        self._listen(call, tensor)
        if not again:
            self.edges.append(get_gradient_edge(tensor))
            if isinstance(unit.module, ParametrizationList):
                self.computed_weights.append(tensor.grad_fn)

    def _listen(self, call: LayerCall, tensor: Tensor) -> None:
        """Pass the gradient of a tensor to the listener, as that of a call."""
        versions = [(each, each._version) for each in _tensors((call.args, call.kwargs))]
        tensor.register_hook(functools.partial(self._on_gradient, call, versions))

    def _on_gradient(
        self, call: LayerCall, versions: list[tuple[Tensor, int]], grad: Tensor
    ) -> None:
        if self.listener is None:
            return
        if any(tensor._version != version for tensor, version in versions):
            raise CaptureError(
                f"An input of the layer {call.unit.name!r} was changed in place after the layer "
                "had used it, so the gradient of its parameters is lost. Hint: search for "
                "inplace=True, or operations such as x += y, after this layer."
            )
        with torch.no_grad(), torch.autocast(grad.device.type, enabled=False):
            self.listener(call, grad.detach())

    # -- compiled regions ------------------------------------------------------------------------

    def region_options(self) -> RegionOptions:
        """Return what is captured of compiled regions."""
        return RegionOptions(self._handles, self._forward is not None, self.logs_only)

    def is_confirmed(self, key: Hashable) -> bool:
        """Return whether a signature was proven in this pass, for light regions."""
        return key in self._watched.confirmed

    def started(self) -> int:
        """Return the number of layer calls so far."""
        return len(self.calls)

    def templates_since(self, start: int) -> list[CallTemplate] | None:
        """Return the calls since then as templates; None if some call cannot be repeated."""
        own = self._templates[start:]
        found = [each for each in own if each is not None]
        return found if len(found) == len(own) else None

    def _template(self, call: LayerCall, output: Any, tensor: Tensor) -> CallTemplate | None:
        if tensor is not output and not (type(output) is tuple and tensor is output[0]):
            return None
        meta = (call.output, tensor.dtype, tensor.device)
        needed = self._backward and tensor.requires_grad
        return CallTemplate(self._numbers[id(call.unit)], meta if needed else None, call.of_inputs)

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(unit): number for number, unit in enumerate(self._watched.units)}

    def add_compiled(self, calls: Sequence[CompiledCall]) -> None:
        """Add layer calls of compiled code, whose gradients probes receive."""
        for each in calls:
            unit, shape = self._watched.units[each.template.number], each.shape
            number, of_inputs = len(self.calls), each.template.of_inputs
            call = LayerCall(number, unit, each.args, each.kwargs, shape, of_inputs)
            self.calls.append(unit.name)
            self._templates.append(each.template)
            self.axes.append(tuple([i for i, n in enumerate(shape) if n == self._batch]))
            if self._forward is not None and each.output is not None:
                self._forward(call, each.output)
            if each.probe is not None:
                self.dtypes.add(each.probe.dtype)
                self._listen(call, each.probe)
                each.probe.register_post_accumulate_grad_hook(_forget)
                self.edges.append(get_gradient_edge(each.probe))
                self.probes.append(each.probe)


def _forget(probe: Tensor) -> None:
    """Free the gradient of a probe, which its hook has passed on."""
    probe.grad = None


def is_eager() -> bool:
    """Return whether the user lets compiled code run as it was written."""
    if "torch._dynamo" not in sys.modules:
        return True
    return bool(torch._dynamo.eval_frame._stance.stance == "force_eager")


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Run compiled models eagerly, since compiled code calls no hooks."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def in_backward() -> bool:
    """Return whether a backward pass is running; a forward pass is then a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in the output of a module; None if it has none."""
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


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _detached(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_detached(each) for each in value)
    return value
