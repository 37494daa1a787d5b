"""Seeing the loss: ``torch.autograd.backward`` tells of it while a batch is logged.

``loss.backward()`` calls that function. In its place stands one that tells the batch which loss it
was, if this thread logs one, and lets it call the original. ``GradScaler.scale`` tells by what it
multiplied which loss, and ``torch.utils.checkpoint`` that it was used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Backward:
    """One call of ``torch.autograd.backward``.

    Args:
        losses: what it starts from.
        grads: the gradient of each, None for one that is a number.
        inputs: what gradients are wanted of, None for all that there is.
        run: does it.
    """

    losses: Sequence[Tensor]
    grads: Sequence[Tensor | None]
    inputs: Any
    run: Callable[[], Any]


_CHECKPOINT = "_checkpoint_without_reentrant_generator"

_lock = threading.Lock()
_watching = 0
_originals: dict[str, Any] = {}
_local = threading.local()
_around: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


@dataclasses.dataclass(frozen=True)
class Listener:
    """What is told of what happens in a batch.

    Args:
        backward: that ``torch.autograd.backward`` was called; it has to do it.
        scaled: that a ``GradScaler`` made this loss, and by what it multiplied it.
        checkpointed: that a part of the forward pass will be run again.
    """

    backward: Callable[[Backward], Any]
    scaled: Callable[[Tensor, float], None]
    checkpointed: Callable[[], None]


@contextlib.contextmanager
def told(listener: Listener) -> Iterator[None]:
    """Tell of what happens in this thread, for the time of a ``with``."""
    before = getattr(_local, "listener", None)
    _install()
    _local.listener = listener
    try:
        yield
    finally:
        _local.listener = before
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
    global _watching
    with _lock:
        _watching += 1
        if _watching > 1:
            return
        _originals["backward"] = torch.autograd.backward
        _originals["scale"] = torch.amp.GradScaler.scale
        _originals["checkpoint"] = getattr(torch.utils.checkpoint, _CHECKPOINT, None)
        if _originals["checkpoint"] is not None:
            setattr(torch.utils.checkpoint, _CHECKPOINT, _checkpointing(_originals["checkpoint"]))
        torch.autograd.backward = _telling(_originals["backward"])
        torch.amp.GradScaler.scale = _scaling(_originals["scale"])  # type: ignore[method-assign]


def _uninstall() -> None:
    global _watching
    with _lock:
        _watching -= 1
        if not _watching:
            torch.autograd.backward = _originals["backward"]
            torch.amp.GradScaler.scale = _originals["scale"]  # type: ignore[method-assign]
            if _originals["checkpoint"] is not None:
                setattr(torch.utils.checkpoint, _CHECKPOINT, _originals["checkpoint"])


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        def run() -> Any:
            with contextlib.ExitStack() as stack:
                for each in _around:
                    stack.enter_context(each())
                return original(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
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


def _scaling(original: Any) -> Any:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        found = original(self, outputs)
        listener = getattr(_local, "listener", None)
        if listener is None or not self.is_enabled():
            return found
        return _told_of(found, float(self.get_scale()), listener)

    return scale


def _told_of(scaled: Any, factor: float, listener: Listener) -> Any:
    """Tell of each loss that was scaled, in whatever it is; a ``map`` is one that waits."""
    if isinstance(scaled, Tensor):
        listener.scaled(scaled, factor)
    elif isinstance(scaled, (list, tuple)):
        for each in scaled:
            _told_of(each, factor, listener)
    elif isinstance(scaled, map):
        return map(functools.partial(_told_of, factor=factor, listener=listener), scaled)
    return scaled


def _checkpointing(original: Any) -> Any:
    @functools.wraps(original)
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        listener = getattr(_local, "listener", None)
        if listener is not None:
            listener.checkpointed()
        return original(*args, **kwargs)

    return checkpoint
