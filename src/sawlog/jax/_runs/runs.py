"""The host's side of the loggers: the runs that are open, in one table by number."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sawlog._lifecycle import ended_with_error as ended_badly
from sawlog.errors import ArgumentError, CallbackError, StoreExistsError
from sawlog.jax import _compat
from sawlog.jax._core.handles import handles
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs.background import Background
from sawlog.jax._saving.records import to_records
from sawlog.jax._transforms.tap_host import Call, Flush
from sawlog.records import Records
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
        self,
        name: str,
        about: Mapping[str, Any],
        sink: Sink,
        ended: Callable[[], None],
        background: Background,
        owner: Callable[[], Any] = lambda: True,
    ) -> None:
        self.name = name
        self.about = about
        self.failed = False  # whether the program that wrote last raised
        self.ended = ended  # called after some runs were closed
        self.background = background
        self.owner = owner  # a weak reference to the logger
        self.troubles: list[BaseException] = []  # what went wrong there, for the next caller
        self._sink = sink
        self._lock = threading.Lock()
        self.number = handles.enter(self)

    def write(self, logs: logdict) -> None:
        """Write a logdict, whole."""
        self.write_records(to_records(logs))

    def write_records(self, records: Records) -> None:
        """Write records, whole."""
        with self._lock:
            self._sink.write(records)

    @property
    def path(self) -> Path | None:
        """Where it is on disk, if it is one store or file."""
        return getattr(self._sink, "path", None)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is raised inside, and go on."""
        try:
            yield
        except BaseException as error:
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """Keep what went wrong in the background, for the next caller."""
        self.failed = True
        self.troubles.append(error)

    def raise_troubles(self, about: str = "") -> None:
        """Raise what went wrong in the background since the last time: the first of it.

        ``about`` says what became of the call that raises it, which has nothing to do with it.
        """
        if self.troubles:
            troubles, self.troubles = self.troubles, []
            first = troubles[0]
            note = f"sawlog: while writing in the background to the run {self.name!r}"
            more = f", and {len(troubles) - 1} times after that" if len(troubles) > 1 else ""
            first.add_note(note + more)
            if about:
                first.add_note(f"sawlog: this comes from an earlier call. {about}")
            raise first

    def flush(self) -> None:
        """Return when everything written is safe."""
        with self._lock:
            self._sink.flush()
        self.raise_troubles()

    def close(self) -> None:
        """End the run, as failed or not; its number then means nothing any more."""
        with self._lock:
            if self.failed:
                fail(self._sink)
            self._sink.close()
        handles.leave(self.number)

    def deliver(self, call: Call | Flush, arrays: Sequence[Any]) -> None:
        """Take what a program sent.

        Raises:
            CallbackError: saying which logs could not be written, and why.
        """
        self.background.write_ready()  # what was logged outside of programs before
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


_given_up = False  # Ctrl-C was pressed while runs were closed at the end


def _close_all() -> None:
    global _given_up
    if _given_up:
        return
    _given_up = True
    _close_every_run()
    _given_up = False


def _close_every_run() -> None:
    with contextlib.suppress(Exception):
        _compat.wait_for_effects()
    runs = handles.all_of(Run)
    for background in dict.fromkeys(run.background for run in runs):
        background.drain()
    for run in runs:
        run.failed = run.failed or ended_badly()
        _close_quietly(run)
    for ended in dict.fromkeys(run.ended for run in runs):
        ended()


def close_forgotten(inside: bool) -> bool:
    """Close the runs whose loggers nobody has any more; says whether there were any.

    In a notebook a cell that is run again makes a new logger, and nobody can close the old one.
    ``inside`` says that a program is waiting for this: then only runs that nothing is on its way to
    are closed.
    """
    gc.collect()
    if not inside:
        with contextlib.suppress(Exception):
            _compat.wait_for_effects()
    forgotten = [run for run in handles.all_of(Run) if run.owner() is None]
    if inside:
        forgotten = [run for run in forgotten if run.background.is_empty]
    for run in forgotten:
        if not inside:
            run.background.drain()
        _close_quietly(run)
    return bool(forgotten)


def _close_quietly(run: Run) -> None:
    """Close a run whose logger cannot be told what is wrong."""
    try:
        run.close()
        run.raise_troubles()
    except Exception as error:
        warnings.warn(
            f"The run {run.name!r} was not finished, and closing it now failed: {error}",
            stacklevel=2,
        )


def check_not_open(path: Path) -> None:
    """Refuse to replace a run that another logger of this program is writing.

    Raises:
        StoreExistsError: naming it.
    """
    if any(run.path == path for run in handles.all_of(Run)):
        raise StoreExistsError(
            f"The run at {path} is being written to by another logger of this program, whose logs "
            "exists='replace' would delete. Hint: finish that one first, or use another folder, "
            "name= or group=."
        )


def run_of(number: Any) -> Run:
    """The run with a number.

    Raises:
        StoreClosedError: there is none, or none any more.
    """
    run = handles.find(number)
    assert isinstance(run, Run)  # only programs know the numbers of other receivers
    return run
