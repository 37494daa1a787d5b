"""The host side of ``tap``: who receives what a program sends.

A compiled program cannot hold a Python object, but it can carry an ``int32`` through ``vmap``,
``scan`` and ``jit``. The host looks the number up in one table of receivers, which all threads
share. A receiver is a :class:`CallbackReceiver`, which calls the callback of :func:`sawlog.tap`, or
the run of a logger.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from sawlog.errors import CallbackError, StoreClosedError
from sawlog.jax import _compat
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.tap_payload import Payload

T = TypeVar("T")


class Receiver(Protocol):
    """An object that receives what programs send."""

    def deliver(self, payload: Payload, arrays: Sequence[Any]) -> None:
        """Read the arrays of one host call."""


class ReceiverTable:
    """The receivers that programs can name, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receivers: dict[int, Receiver] = {}
        self._numbers = itertools.count(1)

    def enter(self, receiver: Receiver) -> int:
        """Return a new number for a receiver."""
        with self._lock:
            number = next(n % 2**31 for n in self._numbers if n % 2**31 not in self._receivers)
            self._receivers[number] = receiver
            return number

    def leave(self, number: int) -> None:
        """Forget a number."""
        with self._lock:
            self._receivers.pop(number, None)

    def find(self, number: Any) -> Receiver:
        """Return the receiver with this number.

        Raises:
            StoreClosedError: no receiver has the number, or it was removed.
        """
        with self._lock:
            receiver = self._receivers.get(int(number))
        if receiver is None:
            raise StoreClosedError(
                f"No run has the number {int(number)}. Probably it was finished or replaced before "
                "this was logged, or the state comes from another process. Hint: get a new state "
                "from logger.init(key), and call logger.finish() last."
            )
        return receiver

    def all_of(self, kind: type[T]) -> list[T]:
        """Return every receiver of a class."""
        with self._lock:
            return [each for each in self._receivers.values() if isinstance(each, kind)]


receivers = ReceiverTable()


def on_device(number: int) -> Any:
    """Return the number of a receiver as an argument of a program.

    Under ``jax.transfer_guard("disallow")``, which forbids implicit transfers, the number and the
    token of ordered callbacks are transferred explicitly. Otherwise the implicit transfer of JAX is
    faster.
    """
    if not _compat.guards_transfers():
        return np.int32(number)
    _compat.prepare_order(tap_effect)
    return jax.device_put(np.int32(number))


@contextlib.contextmanager
def registered(receiver: Receiver) -> Iterator[Any]:
    """Enter a receiver into the table inside the ``with``, and return its number."""
    number = receivers.enter(receiver)
    try:
        yield on_device(number)
    finally:
        receivers.leave(number)


def deliver_by_number(payload: Payload, arrays: Sequence[Any]) -> None:
    """Deliver a host call to the receivers that its number operand names, one for each lane."""
    masked = payload.has_mask
    own = [to_host(array) for array in arrays]
    numbers = own.pop(-2 if masked else -1)
    one = payload.without_lanes(numbers.ndim)
    for lane in np.ndindex(numbers.shape):
        if not masked or np.any(own[-1][lane]):
            receivers.find(numbers[lane]).deliver(one, [array[lane] for array in own])


def to_host(array: Any) -> np.ndarray:
    """Return a host array; without a compiled program, PRNG keys arrive as such."""
    kind = _compat.key_kind(array)
    return np.asarray(array if kind is None else jax.random.key_data(array))


class CallbackReceiver:
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

    def deliver(self, payload: Payload, arrays: Sequence[Any]) -> None:
        """Call the callback once, or once for each lane of a ``vmap`` around ``tap``."""
        with self._lock:
            if self._held:
                return
            try:
                for logs in payload.logs(arrays):
                    self._callback(logs.prefix(self._prefix) if self._prefix else logs)
            except BaseException as error:
                names = ", ".join(map(repr, payload.keys))
                what = f"the callback of tap, for the log of {names} at {payload.where}"
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
