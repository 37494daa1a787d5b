"""The host's side of ``tap``: turning what the device sends into calls of the user's callback."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import CallbackError
from sawlog.jax._entries import Part, Slot
from sawlog.jax._logdict import logdict
from sawlog.jax._site import Site

_targets: dict[int, Target] = {}
_targets_lock = threading.Lock()
_numbers = itertools.count()


@contextlib.contextmanager
def opened(target: Target) -> Iterator[np.int32]:
    """A number by which a running program can name ``target``, as long as the context lasts."""
    with _targets_lock:
        number = next(_numbers) % 2**31
        _targets[number] = target
    try:
        yield np.int32(number)
    finally:
        with _targets_lock:
            del _targets[number]


def target_of(number: Any) -> Target:
    """The target that a program named."""
    with _targets_lock:
        return _targets[int(number)]


class Target:
    """Where the logs of one tapped function go.

    With ``hold_errors`` an exception of the callback is kept for :meth:`raise_held`, and no further
    log is delivered until then; otherwise it goes to JAX, which raises it where the program is
    waited for.
    """

    def __init__(self, callback: Callable[[logdict], Any], prefix: str, hold_errors: bool) -> None:
        self._callback = callback
        self._prefix = prefix
        self._hold_errors = hold_errors
        self._held: list[BaseException] = []
        self._lock = threading.Lock()

    def deliver(self, site: Site, keys: Sequence[str], lanes: int, arrays: Sequence[Any]) -> None:
        """Call back for one log call: once, or once for each lane of a ``vmap`` around ``tap``."""
        with self._lock:
            if self._held:
                return
            try:
                self._deliver(site, keys, lanes, arrays)
            except BaseException as error:
                what = f"the callback of tap, for the log of {', '.join(map(repr, keys))} at "
                if not self._hold_errors:
                    text = f"{type(error).__name__}: {error} (raised by {what}{site.where})"
                    raise CallbackError(text).with_traceback(error.__traceback__) from error
                error.add_note(f"sawlog: raised by {what}{site.where}")
                self._held.append(error)

    def _deliver(self, site: Site, keys: Sequence[str], lanes: int, arrays: Sequence[Any]) -> None:
        arrays = [np.asarray(array) for array in arrays]
        sizes = arrays[0].shape[:lanes]
        for lane in itertools.product(*map(range, sizes)):
            logs = one_call(site, keys, [array[lane] for array in arrays], lanes)
            if logs:
                self._callback(logs.prefix(self._prefix) if self._prefix else logs)

    def raise_held(self) -> None:
        """Raise what the callback raised, if it did."""
        with self._lock:
            held, self._held = self._held, []
        if held:
            raise held[0]


def one_call(site: Site, keys: Sequence[str], arrays: list[Any], lanes: int) -> logdict:
    """The logdict of one call of ``log``; empty when it did not really run."""
    named = site.split(arrays)
    mask = named.mask
    if mask is not None and not np.any(mask):
        return logdict()
    if mask is not None and np.all(mask):
        mask = None
    if mask is not None:
        named = named.blanked(np.where)
    parts = []
    for key, tree, leaves in zip(site.keys, site.trees, named.values, strict=True):
        if key in keys:
            batch = site.batch - lanes
            slot = Slot(key, site.steps, False, np.ndim(leaves[0]), batch, mask is not None)
            value = jax.tree.unflatten(tree, leaves)
            parts.append(Part(value, tuple(named.steps.values()), mask, slot))
    return logdict._of(parts)
