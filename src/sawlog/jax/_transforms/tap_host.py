"""The host side of ``tap``: convert what the device sends to logdicts for the callback."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import CallbackError
from sawlog.jax import _compat
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._core.site import Operands, Site
from sawlog.jax._logdict.entries import LogdictPart, Slot, parts_of_site, settle, stack
from sawlog.jax._logdict.logdict import logdict


@dataclasses.dataclass(frozen=True)
class LogCall:
    """The static description of one log, with which the host reads its arrays.

    The first ``lanes`` axes are those of a ``vmap`` around ``tap``. ``key_kinds`` tells which
    operands are PRNG keys; these arrive as plain integers.
    """

    site: Site
    keys: tuple[str, ...]
    lanes: int
    key_kinds: tuple[Any, ...]

    @property
    def where(self) -> str:
        """The source line of the log."""
        return self.site.where

    def logs(self, arrays: Sequence[Any]) -> Iterator[logdict]:
        """Yield a logdict for each lane that logged."""
        arrays = [np.asarray(array) for array in arrays]
        for lane in itertools.product(*map(range, arrays[0].shape[: self.lanes])):
            logs = self._of_lane([array[lane] for array in arrays])
            if logs:
                yield logs

    def _of_lane(self, arrays: list[Any]) -> logdict:
        named = self.site.split(arrays)
        mask = named.mask
        if mask is not None and not np.any(mask):
            return logdict()
        if mask is not None and np.all(mask):
            mask = None
        if mask is not None:
            named = named.blanked(_select)
        kinds = iter(self.key_kinds)
        wrapped = [tuple(_wrap_keys(x, next(kinds)) for x in leaves) for leaves in named.values]
        named = Operands(wrapped, named.steps, mask)
        parts = [p for p in parts_of_site(self.site, named, self.lanes) if p.slot.key in self.keys]
        return logdict._of(parts)


@dataclasses.dataclass(frozen=True)
class Flush:
    """The static description of many logs that are sent together.

    It takes the place of a site, so that ``vmap`` and masks around ``tap`` handle both in the same
    way. Every operand has ``batch`` leading axes; if ``masked``, the last operand masks the
    lanes.
    """

    tree: Any
    slots: tuple[Slot, ...]
    key_kinds: tuple[Any, ...]
    batch: int = 0
    masked: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    forward_mode: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names that are sent."""
        return tuple(slot.key for slot in self.slots)

    @property
    def where(self) -> str:
        """A placeholder, since the logs are at several source lines."""
        return "several places"

    def logs(self, arrays: Sequence[Any]) -> Iterator[logdict]:
        """Yield a logdict for each lane that is not masked."""
        arrays = [np.asarray(array) for array in arrays]
        for lane in itertools.product(*map(range, arrays[0].shape[: self.batch])):
            own = [array[lane] for array in arrays]
            if self.masked and not own.pop():
                continue
            logs = self._of_lane(own)
            if logs:
                yield logs

    def _of_lane(self, arrays: list[Any]) -> logdict:
        leaves = [_wrap_keys(x, k) for x, k in zip(arrays, self.key_kinds, strict=True)]
        parts = []
        triples = jax.tree.unflatten(self.tree, leaves)
        for slot, (value, steps, mask) in zip(self.slots, triples, strict=True):
            part = settle(stack(LogdictPart(value, tuple(steps), mask, slot)))
            if part is not None and np.shape(part.first)[0]:
                parts.append(part)
        return logdict._of(parts)


def _select(mask: Any, x: Any, y: Any) -> Any:
    return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)


def _wrap_keys(leaf: Any, kind: Any) -> Any:
    return leaf if kind is None else jax.random.wrap_key_data(leaf, impl=kind)


def on_device(number: int) -> Any:
    """Return the number of a target as an argument of a program.

    Under ``jax.transfer_guard("disallow")``, which forbids implicit transfers, the number and the
    token of ordered callbacks are transferred explicitly. Otherwise the implicit transfer of JAX is
    faster.
    """
    if not _compat.guards_transfers():
        return np.int32(number)
    _compat.prepare_order(tap_effect)
    return jax.device_put(np.int32(number))


_targets: dict[int, Target] = {}
_targets_lock = threading.Lock()
_numbers = itertools.count()


@contextlib.contextmanager
def opened(target: Target) -> Iterator[Any]:
    """Register ``target`` for the duration of the context, and return its number."""
    with _targets_lock:
        number = next(_numbers) % 2**31
        _targets[number] = target
    try:
        yield on_device(number)
    finally:
        with _targets_lock:
            del _targets[number]


def target_of(number: Any) -> Target:
    """Return the target with this number."""
    with _targets_lock:
        return _targets[int(number)]


class Target:
    """The callback of one tapped function.

    With ``hold_errors``, an exception of the callback is kept for :meth:`raise_held`, and further
    logs are discarded until then. Otherwise it is passed to JAX, which raises it where the caller
    waits for the program.
    """

    def __init__(self, callback: Callable[[logdict], Any], prefix: str, hold_errors: bool) -> None:
        self._callback = callback
        self._prefix = prefix
        self._hold_errors = hold_errors
        self._held: list[BaseException] = []
        self._lock = threading.Lock()

    def deliver(self, call: LogCall | Flush, arrays: Sequence[Any]) -> None:
        """Call the callback once, or once for each lane of a ``vmap`` around ``tap``."""
        with self._lock:
            if self._held:
                return
            try:
                for logs in call.logs(arrays):
                    self._callback(logs.prefix(self._prefix) if self._prefix else logs)
            except BaseException as error:
                names = ", ".join(map(repr, call.keys))
                what = f"the callback of tap, for the log of {names} at {call.where}"
                if not self._hold_errors:
                    text = f"{type(error).__name__}: {error} (raised by {what})"
                    raise CallbackError(text).with_traceback(error.__traceback__) from error
                error.add_note(f"sawlog: raised by {what}")
                self._held.append(error)

    def raise_held(self) -> None:
        """Raise the exception of the callback, if there was one."""
        with self._lock:
            held, self._held = self._held, []
        if held:
            raise held[0]
