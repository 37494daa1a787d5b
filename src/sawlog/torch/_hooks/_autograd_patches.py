"""Patches of PyTorch for the time of a batch, so that the capture sees the loss.

``loss.backward()`` calls ``torch.autograd.backward``. The patched function passes the call to the
listener of this thread, if there is one, which runs the original. ``GradScaler.scale`` reports each
loss that it scaled and by how much, and ``torch.utils.checkpoint`` reports that it was called.
``torch.cond`` and the like are compiled by PyTorch itself, also where other compiled code runs as
it is written. Hooks on several tensors, which ask whether a leaf will be reached, get an answer in
``torch.autograd.grad`` too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._higher_order_ops.utils as higher_order
import torch.utils.checkpoint
from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import is_reached


@dataclasses.dataclass(frozen=True)
class Backward:
    """One call of ``torch.autograd.backward``.

    Args:
        losses: the tensors that it starts from.
        grads: the gradient of each; None for a scalar.
        inputs: the tensors whose gradients are requested; None is all leaves.
        run: runs the original function; with the gradients of further tensors, if given.
    """

    losses: Sequence[Tensor]
    grads: Sequence[Tensor | None]
    inputs: Any
    run: Callable[..., Any]


_CHECKPOINT = "_checkpoint_without_reentrant_generator"
_HIGHER_ORDER = "_hop_compile_and_call"
_EXECUTES = "_will_engine_execute_node"

_lock = threading.Lock()
_users = 0
_originals: dict[str, Any] = {}
_local = threading.local()
_around: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


@dataclasses.dataclass(frozen=True)
class Listener:
    """Callbacks for the events of a batch.

    Args:
        backward: ``torch.autograd.backward`` was called; it must call ``run``.
        scaled: a ``GradScaler`` returned this loss, scaled by this factor.
        checkpointed: a part of the forward pass will run again in the backward pass.
    """

    backward: Callable[[Backward], Any]
    scaled: Callable[[Tensor, float], None]
    checkpointed: Callable[[], None]


@contextlib.contextmanager
def patched(listener: Listener) -> Iterator[None]:
    """Call ``listener`` for the events of this thread, inside the ``with``."""
    if getattr(_local, "listener", None) is not None:
        raise CaptureError(
            "Another run is logging a batch, and a backward pass can be logged by one run only. "
            "Hint: log the batch with one run after the other."
        )
    _install()
    _local.listener = listener
    try:
        yield
    finally:
        _local.listener = None
        _uninstall()


@contextlib.contextmanager
def around_backward(
    context: Callable[[], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Run backward passes of the user inside of a context, for the time of a ``with``."""
    _install()
    _around.append(context)
    try:
        yield
    finally:
        _around.remove(context)
        _uninstall()


def _install() -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        _originals["backward"] = torch.autograd.backward
        _originals["scale"] = torch.amp.GradScaler.scale
        for owner, name, wrapped in _PRIVATE:
            _originals[name] = original = getattr(owner, name, None)
            if original is not None:
                setattr(owner, name, wrapped(original))
        torch.autograd.backward = _reporting_backward(_originals["backward"])
        torch.amp.GradScaler.scale = _reporting_scale(_originals["scale"])  # type: ignore[method-assign]


def _uninstall() -> None:
    global _users
    with _lock:
        _users -= 1
        if not _users:
            torch.autograd.backward = _originals["backward"]
            torch.amp.GradScaler.scale = _originals["scale"]  # type: ignore[method-assign]
            for owner, name, _ in _PRIVATE:
                if _originals[name] is not None:
                    setattr(owner, name, _originals[name])


def _reporting_backward(original: Any) -> Any:
    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        def run(more: Sequence[Tensor] = ()) -> Any:
            wanted = inputs
            if inputs is not None and more:
                wanted = [*([inputs] if isinstance(inputs, Tensor) else inputs), *more]
            with contextlib.ExitStack() as stack:
                for each in _around:
                    stack.enter_context(each())
                return original(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, wanted
                )

        listener = getattr(_local, "listener", None)
        several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if listener is None or not several or not all(isinstance(each, Tensor) for each in several):
            return run()
        grads = grad_variables if grad_tensors is None else grad_tensors
        grads = [grads] if isinstance(grads, Tensor) else grads
        grads = [None] * len(several) if grads is None else list(grads)
        wanted = [inputs] if isinstance(inputs, Tensor) else inputs
        return listener.backward(Backward(several, grads, wanted, run))

    return backward


def _reporting_scale(original: Any) -> Any:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        found = original(self, outputs)
        listener = getattr(_local, "listener", None)
        if listener is None or not self.is_enabled():
            return found
        return _report_scaled(found, float(self.get_scale()), listener)

    return scale


def _report_scaled(scaled: Any, factor: float, listener: Listener) -> Any:
    """Report each loss in what ``scale`` returned; a ``map`` reports each when it is read."""
    if isinstance(scaled, Tensor):
        listener.scaled(scaled, factor)
    elif isinstance(scaled, (list, tuple)):
        for each in scaled:
            _report_scaled(each, factor, listener)
    elif isinstance(scaled, map):
        return map(functools.partial(_report_scaled, factor=factor, listener=listener), scaled)
    return scaled


def _reporting_checkpoint(original: Any) -> Any:
    @functools.wraps(original)
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        listener = getattr(_local, "listener", None)
        if listener is not None:
            listener.checkpointed()
        return original(*args, **kwargs)

    return checkpoint


def _compiling(original: Any) -> Any:
    """Let ``torch.cond`` and the like compile: as written, they lose the gradients of closures."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_local, "listener", None) is None:
            return original(*args, **kwargs)
        try:
            with torch.compiler.set_stance("default"):
                return original(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            first = str(error).strip().partition("\n")[0]
            raise CaptureError(
                "An operation that PyTorch compiles, such as torch.cond, cannot be logged, "
                f"probably because it calls a watched layer: {first}. Hint: write it as a Python "
                "`if` or loop inside `with run(...)`, or leave the layer out by names=."
            ) from error

    return call


def _answering(original: Any) -> Any:
    """Answer for leaves in ``torch.autograd.grad`` of sawlog, where PyTorch raises."""

    @functools.wraps(original)
    def executes(node: Any) -> bool:
        reached = is_reached(node)
        return bool(original(node)) if reached is None else reached

    return executes


_PRIVATE: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (torch.utils.checkpoint, _CHECKPOINT, _reporting_checkpoint),
    (higher_order, _HIGHER_ORDER, _compiling),
    (torch._C, _EXECUTES, _answering),
)
"""Private functions of PyTorch: their module, their name, and what wraps them."""
