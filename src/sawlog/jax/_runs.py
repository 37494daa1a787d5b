"""The host's side of the loggers: the runs that are open, in one table by number."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog._exit import ended_badly
from sawlog.errors import ArgumentError, CallbackError, StoreClosedError
from sawlog.jax._host import Call, Flush, on_device
from sawlog.jax._logdict import logdict
from sawlog.jax._saving import to_records
from sawlog.sinks import Sink as Sink
from sawlog.sinks import fail


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunState:
    """Which run a program writes to: a pytree of one number, an ``int32``.

    It passes through ``jit``, ``vmap``, ``scan`` and ``cond`` like any other value.
    """

    run: Any


def checked_state(state: Any) -> RunState:
    """Refuse what no logger made.

    Raises:
        ArgumentError: naming what was given.
    """
    if not isinstance(state, RunState):
        raise ArgumentError(
            f"state must be what logger.init(key) returned, got {type(state).__name__}. "
            "Hint: state = logger.init(key); logger.spool(f, state)(x)"
        )
    return state


def number_of(state: Any) -> Any:
    """The number of the one run of a state.

    Raises:
        ArgumentError: it is no state, or that of several runs.
    """
    number = checked_state(state).run
    if np.ndim(number):
        raise ArgumentError(
            f"state has the runs of {int(np.size(number))} keys, and it must be clear to which one "
            "this is written. Hint: map over it, as in "
            "jax.vmap(lambda state, x: logger.spool(f, state)(x))(state, xs)."
        )
    return number


class Run:
    """One run of a logger, from its start until it is finished."""

    def __init__(
        self, name: str, about: Mapping[str, Any], sink: Sink, ended: Callable[[], None]
    ) -> None:
        self.name = name
        self.about = about
        self.failed = False  # whether the program that wrote last raised
        self.ended = ended  # called after some runs were closed
        self._sink = sink
        self._lock = threading.Lock()
        self.number = _table.enter(self)

    def write(self, logs: logdict) -> None:
        """Write a logdict, whole."""
        records = to_records(logs)
        with self._lock:
            self._sink.write(records)

    def flush(self) -> None:
        """Return when everything written is safe."""
        with self._lock:
            self._sink.flush()

    def close(self) -> None:
        """End the run, as failed or not; its number then means nothing any more."""
        with self._lock:
            if self.failed:
                fail(self._sink)
            self._sink.close()
        _table.leave(self.number)

    def deliver(self, call: Call | Flush, arrays: Sequence[Any]) -> None:
        """Take what a program sent.

        Raises:
            CallbackError: saying which logs could not be written, and why.
        """
        try:
            for logs in call.logs(arrays):
                self.write(logs)
        except BaseException as error:
            text = f"{type(error).__name__}: {error} ({self.where(call)})"
            raise CallbackError(text).with_traceback(error.__traceback__) from error

    def where(self, call: Call | Flush) -> str:
        """What was going on, for error messages."""
        names = ", ".join(map(repr, call.keys))
        return f"while writing the log of {names} at {call.where} to the run {self.name!r}"


class Held:
    """A run for the time of one call: what goes wrong is kept, for the caller to raise."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.error: BaseException | None = None

    def deliver(self, call: Call | Flush, arrays: Sequence[Any]) -> None:
        """Take what a program sent, unless something went wrong before."""
        if self.error is None:
            try:
                self.run.deliver(call, arrays)
            except CallbackError as error:
                cause = error.__cause__ or error
                cause.add_note(f"sawlog: {self.run.where(call)}")
                self.error = cause


class _Table:
    """Which run a number means. There is one of these, and all threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, Run | Held] = {}
        self._numbers = itertools.count(1)

    def enter(self, entry: Run | Held) -> int:
        """A number for a run."""
        with self._lock:
            number = next(self._numbers) % 2**31
            self._entries[number] = entry
            return number

    def leave(self, number: int) -> None:
        """Forget a number."""
        with self._lock:
            self._entries.pop(number, None)

    def find(self, number: Any) -> Run | Held:
        """What a number means.

        Raises:
            StoreClosedError: nothing, or nothing any more.
        """
        with self._lock:
            entry = self._entries.get(int(number))
        if entry is None:
            raise StoreClosedError(
                f"No run has the number {int(number)}. Probably it was finished or replaced before "
                "this was logged, or the state comes from another process. Hint: get a new state "
                "from logger.init(key), and call logger.finish() last."
            )
        return entry

    def runs(self) -> list[Run]:
        """Every run that is open."""
        with self._lock:
            return [entry for entry in self._entries.values() if isinstance(entry, Run)]


_table = _Table()


@functools.cache
def close_at_exit() -> None:
    """See to it that all runs are closed when the program ends.

    What is registered last runs first. It must run before JAX shuts down and before the finalizers
    of writers, which are run by a function that the first finalizer registers; and it must be
    registered before a program is on its way, whose runs may only open when the main thread is at
    its end.
    """
    weakref.finalize(close_at_exit, lambda: None).detach()
    atexit.register(_close_all)


def close_first_at_exit() -> None:
    """The same again, to be done before what trackers do at the end of the program."""
    atexit.register(_close_all)


def _close_all() -> None:
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    runs = _table.runs()
    for run in runs:
        run.failed = run.failed or ended_badly()
        try:
            run.close()
        except Exception as error:
            warnings.warn(
                f"The run {run.name!r} was not finished, and closing it now failed: {error}",
                stacklevel=1,
            )
    for ended in dict.fromkeys(run.ended for run in runs):
        ended()


@contextlib.contextmanager
def watched(run: Run) -> Iterator[None]:
    """A program that writes to a run: where it raises, the run failed, unless a later one works."""
    try:
        yield
    except BaseException:
        run.failed = True
        raise
    run.failed = False


def find(number: Any) -> Run | Held:
    """The run that a program names by this number.

    Raises:
        StoreClosedError: there is none, or none any more.
    """
    return _table.find(number)


def run_of(number: Any) -> Run:
    """The run itself, also where the number was made for one call only.

    Raises:
        StoreClosedError: there is none, or none any more.
    """
    entry = find(number)
    return entry.run if isinstance(entry, Held) else entry


@contextlib.contextmanager
def holding(run: Run) -> Iterator[Any]:
    """A number for ``run`` during one call; what goes wrong in its writes is raised at the end."""
    held = Held(run)
    number = _table.enter(held)
    with watched(run):
        try:
            yield on_device(number)
        finally:
            _table.leave(number)
        if held.error is not None:
            raise held.error
