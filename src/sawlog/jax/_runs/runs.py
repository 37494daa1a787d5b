"""The runs of all loggers: writing to them, and closing those that the program leaves open."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sawlog._lifecycle import Stage, at_exit, ended_with_error
from sawlog._turn import Turn
from sawlog.errors import ArgumentError, CallbackError, StoreExistsError
from sawlog.jax import _compat
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs.background import Background
from sawlog.jax._runs.processes import shards_error
from sawlog.jax._saving.records import to_records
from sawlog.jax._transforms.tap_host import receivers
from sawlog.jax._transforms.tap_payload import Payload
from sawlog.records import Records
from sawlog.sinks import Sink, fail


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunState:
    """The run that a program writes to: a pytree of one number, an ``int32``.

    It passes through ``jit``, ``vmap``, ``scan`` and ``cond`` like any other value.
    """

    run: Any


def checked_state(state: Any) -> RunState:
    """Check that a value is a state returned by ``init``.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(state, RunState):
        raise ArgumentError(
            f"`state` must be what logger.init(key) returned; got {type(state).__name__}. "
            "Hint: state = logger.init(key); logger.spool(f, state)(x)"
        )
    return state


def number_of(state: Any) -> Any:
    """Return the number of the one run of a state.

    Raises:
        ArgumentError: the value is not a state, or has several runs.
    """
    number = checked_state(state).run
    if np.ndim(number):
        raise ArgumentError(
            f"`state` has the runs of {int(np.size(number))} keys, but one run is needed. "
            "Hint: map over the states, as in "
            "jax.vmap(lambda state, x: logger.spool(f, state)(x))(state, xs)."
        )
    return number


class LoggerRun:
    """One run of a logger, from its start until it is finished."""

    def __init__(
        self,
        name: str,
        about: Mapping[str, Any],
        sink: Sink,
        ended: Callable[[], None],
        background: Background,
        owner: Callable[[], Any] = lambda: True,
        only_first: bool = False,
    ) -> None:
        self.name = name
        self.about = about
        self.failed = False  # whether the last program that wrote to it raised
        self.ended = ended  # called after runs were closed
        self.background = background
        self.owner = owner  # a weak reference to the logger
        self.only_first = only_first  # of several processes, the first one writes
        self.background_errors: list[BaseException] = []  # for the next caller
        self._sink = sink
        self._turn = Turn()
        self.number = receivers.enter(self)

    def write(self, logs: logdict) -> None:
        """Write a logdict."""
        self.write_records(to_records(logs))

    def write_records(self, records: Records) -> None:
        """Write records."""
        with self._turn.taken():
            self._sink.write(records)

    @property
    def path(self) -> Path | None:
        """The path on disk, if the run is one store or file."""
        return getattr(self._sink, "path", None)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep an exception raised inside for the next caller, and continue."""
        try:
            yield
        except BaseException as error:
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """Keep an error of the background thread for the next caller."""
        self.failed = True
        self.background_errors.append(error)

    def raise_background_errors(self, about: str = "") -> None:
        """Raise the first error of the background thread since the last call of this, if any.

        ``about`` says what happened to the call that raises it, which did not cause it.
        """
        if self.background_errors:
            errors, self.background_errors = self.background_errors, []
            first = errors[0]
            note = f"sawlog: while writing in the background to the run {self.name!r}"
            more = f", and {len(errors) - 1} times after that" if len(errors) > 1 else ""
            first.add_note(note + more)
            if about:
                first.add_note(f"sawlog: this comes from an earlier call. {about}")
            raise first

    def flush(self) -> None:
        """Return when everything written is durable."""
        with self._turn.taken():
            self._sink.flush()
        self.raise_background_errors()

    def close(self) -> None:
        """End the run, as failed or not, and remove its number."""
        with self._turn.taken():
            if self.failed:
                fail(self._sink)
            self._sink.close()
        receivers.leave(self.number)

    def deliver(self, payload: Payload, arrays: Sequence[Any]) -> None:
        """Write the logs of one host call.

        Raises:
            CallbackError: naming the logs that could not be written, and the reason.
        """
        self.background.write_ready()  # earlier logs from outside of programs
        try:
            self.check_complete(payload)
            for logs in payload.logs(arrays):
                self.write(logs)
        except BaseException as error:
            text = f"{type(error).__name__}: {error} ({self.where(payload)})"
            raise CallbackError(text).with_traceback(error.__traceback__) from error

    def check_complete(self, payload: Payload) -> None:
        """Refuse the logs of single shards where only the first process writes.

        Raises:
            ArgumentError: other processes have logs of other shards, which would be lost.
        """
        if self.only_first and payload.split:
            raise shards_error(payload.keys, self.name)

    def where(self, payload: Payload) -> str:
        """Describe a host call, for error messages."""
        names = ", ".join(map(repr, payload.keys))
        return f"while writing the log of {names} at {payload.where} to the run {self.name!r}"


def run_of(number: Any) -> LoggerRun:
    """Return the run with a number.

    Raises:
        StoreClosedError: no run has the number, or the run was finished.
    """
    run = receivers.find(number)
    assert isinstance(run, LoggerRun)  # only programs know the numbers of other receivers
    return run


def check_not_open(path: Path) -> None:
    """Check that no logger of this program is writing the run at a path.

    Raises:
        StoreExistsError: a logger is.
    """
    if any(run.path == path for run in receivers.all_of(LoggerRun)):
        raise StoreExistsError(
            f"The run at {path} is being written to by another logger of this program, whose logs "
            "exists='replace' would delete. Hint: finish that one first, or use another folder, "
            "name= or group=."
        )


# -- runs that are left open ----------------------------------------------------------------------

_exit_registration: list[Callable[[], None]] = []  # what cancels it


def close_runs_at_exit() -> None:
    """Close all runs at the end of the program, before all exit functions registered so far.

    Loggers call this when they are created: a program may open its first run while the main thread
    is already ending. They call it again before their first run opens: trackers register exit
    functions of their own, which must run later.
    """
    # Finalizers of writers must run later as well; the first finalizer registers their function.
    weakref.finalize(close_runs_at_exit, lambda: None).detach()
    while _exit_registration:
        _exit_registration.pop()()
    _exit_registration.append(at_exit(_close_all, Stage.RUNS))


_interrupted = False  # Ctrl-C was pressed while runs were being closed


def _close_all() -> None:
    global _interrupted
    if _interrupted:
        return
    _interrupted = True
    _close_every_run()
    _interrupted = False


def _close_every_run() -> None:
    with contextlib.suppress(Exception):
        _compat.wait_for_effects()
    runs = receivers.all_of(LoggerRun)
    for background in dict.fromkeys(run.background for run in runs):
        background.drain()
    for run in runs:
        run.failed = run.failed or ended_with_error()
        _close_quietly(run)
    for ended in dict.fromkeys(run.ended for run in runs):
        ended()


def close_forgotten(inside: bool) -> bool:
    """Close the runs of loggers that no longer exist; return whether there were any.

    A notebook cell that runs again creates a new logger, and the old one cannot be closed any more.
    ``inside`` says that a running program waits for this: then only runs without pending logs are
    closed.
    """
    gc.collect()
    if not inside:
        with contextlib.suppress(Exception):
            _compat.wait_for_effects()
    forgotten = [run for run in receivers.all_of(LoggerRun) if run.owner() is None]
    if inside:
        forgotten = [run for run in forgotten if run.background.is_empty]
    for run in forgotten:
        if not inside:
            run.background.drain()
        _close_quietly(run)
    return bool(forgotten)


def _close_quietly(run: LoggerRun) -> None:
    """Close a run, and warn of errors: the logger is gone, or the program is ending."""
    try:
        run.close()
        run.raise_background_errors()
    except Exception as error:
        warnings.warn(
            f"The run {run.name!r} was not finished, and closing it now failed: {error}",
            stacklevel=2,
        )
