"""Handles: numbers by which a running program names objects on the host.

A compiled program cannot hold a Python object, but it can carry an ``int32`` through ``vmap``,
``scan`` and ``jit``. The host looks the number up in one table, which all threads share.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from sawlog.errors import StoreClosedError

T = TypeVar("T")


class Receiver(Protocol):
    """An object that receives what programs send."""

    def deliver(self, payload: Any, arrays: Sequence[Any]) -> None:
        """Read the arrays of one host call."""


class HandleTable:
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


handles = HandleTable()
