"""The host side of ``tap``: convert what the device sends to logdicts for the callback."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import CallbackError
from sawlog.jax import _compat
from sawlog.jax._core.handles import handles
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._core.site import Operands, Site
from sawlog.jax._logdict.entries import LogdictPart, Slot, parts_of_site, settle, stack
from sawlog.jax._logdict.logdict import logdict


class Payload:
    """The static description of one host call, with which the host reads its arrays.

    The first ``lanes`` axes are those of a ``vmap`` around ``tap``. If ``has_mask``, the last array
    is a mask. ``key_kinds`` tells which arrays are PRNG keys; these arrive as plain integers.
    ``split`` tells that it has one shard of several, some of which are those of other processes.
    """

    key_kinds: tuple[Any, ...]
    keys: Any
    where: Any
    split: bool

    @property
    def lanes(self) -> int:
        """The number of leading axes that are lanes."""
        raise NotImplementedError

    @property
    def has_mask(self) -> bool:
        """Whether the last array is a mask."""
        raise NotImplementedError

    def without_lanes(self, lanes: int) -> Payload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        raise NotImplementedError

    def logs(self, arrays: Sequence[Any]) -> Iterator[logdict]:
        """Yield a logdict for each lane that logged."""
        arrays = [np.asarray(array) for array in arrays]
        for lane in np.ndindex(arrays[0].shape[: self.lanes]):
            logs = self._of_lane([array[lane] for array in arrays])
            if logs:
                yield logs

    def _of_lane(self, arrays: list[Any]) -> logdict:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LogPayload(Payload):
    """The payload of one log: its site, and which of its names are sent."""

    site: Site
    keys: tuple[str, ...]
    inside: int
    key_kinds: tuple[Any, ...]
    split: bool = False

    @property
    def where(self) -> str:
        """The source line of the log."""
        return self.site.where

    @property
    def lanes(self) -> int:
        """The axes that were added after the log was sent."""
        return self.site.batch - self.inside

    @property
    def has_mask(self) -> bool:
        """Whether the log is masked."""
        return self.site.masked

    def without_lanes(self, lanes: int) -> LogPayload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        site = dataclasses.replace(self.site, batch=self.site.batch - lanes)
        return dataclasses.replace(self, site=site)

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
        wrapped = [tuple(wrap_keys(x, next(kinds)) for x in leaves) for leaves in named.values]
        named = Operands(wrapped, named.steps, mask)
        parts = [p for p in parts_of_site(self.site, named, self.lanes) if p.slot.key in self.keys]
        return logdict._of(parts)


@dataclasses.dataclass(frozen=True)
class EntriesPayload(Payload):
    """The payload of many entries that are sent together: values, steps and mask of each name.

    The ``tap`` primitive has it in place of a site, so it has the attributes by which ``vmap`` and
    masks change a site: ``batch``, ``masked``, ``branches`` and ``forward_mode``.
    """

    tree: Any
    slots: tuple[Slot, ...]
    key_kinds: tuple[Any, ...]
    batch: int = 0
    masked: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    forward_mode: bool = False
    split: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names that are sent."""
        return tuple(slot.key for slot in self.slots)

    @property
    def where(self) -> str:
        """A placeholder, since the entries come from several source lines."""
        return "several places"

    @property
    def lanes(self) -> int:
        """The number of leading axes, all of which are lanes."""
        return self.batch

    @property
    def has_mask(self) -> bool:
        """Whether the last array says which lanes logged."""
        return self.masked

    def without_lanes(self, lanes: int) -> EntriesPayload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        return dataclasses.replace(self, batch=self.batch - lanes)

    def _of_lane(self, arrays: list[Any]) -> logdict:
        if self.masked and not arrays.pop():
            return logdict()
        return self._read(arrays)

    def _read(self, arrays: list[Any]) -> logdict:
        """Read the arrays of one lane."""
        parts = []
        for slot, (value, steps, mask) in zip(self.slots, self._unflatten(arrays), strict=True):
            part = settle(stack(LogdictPart(value, tuple(steps), mask, slot)))
            if part is not None and np.shape(part.first)[0]:
                parts.append(part)
        return logdict._of(parts)

    def _unflatten(self, arrays: list[Any]) -> Any:
        leaves = [wrap_keys(x, kind) for x, kind in zip(arrays, self.key_kinds, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)


def _select(mask: Any, x: Any, y: Any) -> Any:
    return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)


def wrap_keys(leaf: Any, kind: Any) -> Any:
    """Convert the data of PRNG keys back to keys."""
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


@contextlib.contextmanager
def opened(target: Target) -> Iterator[Any]:
    """Register ``target`` for the duration of the context, and return its number."""
    number = handles.enter(target)
    try:
        yield on_device(number)
    finally:
        handles.leave(number)


def deliver_by_number(call: Payload, arrays: Sequence[Any]) -> None:
    """Deliver a call to the receivers that its number operand names, one for each lane."""
    masked = call.has_mask
    own = [_key_data(array) for array in arrays]
    numbers = own.pop(-2 if masked else -1)
    one = call.without_lanes(numbers.ndim)
    for lane in np.ndindex(numbers.shape):
        if not masked or np.any(own[-1][lane]):
            handles.find(numbers[lane]).deliver(one, [array[lane] for array in own])


def _key_data(array: Any) -> np.ndarray:
    """Return a host array; without a compiled program, PRNG keys arrive as such."""
    kind = _compat.key_kind(array)
    return np.asarray(array if kind is None else jax.random.key_data(array))


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

    def deliver(self, call: Payload, arrays: Sequence[Any]) -> None:
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
