"""``RunOwner``: how a logger opens its runs, finds them again and finishes them."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from sawlog._lifecycle import CloseOnExit
from sawlog._paths import absolute
from sawlog._validate import one_of, optional, positive_number
from sawlog.errors import ArgumentError, StoreClosedError, StoreError, StoreExistsError
from sawlog.jax import _compat
from sawlog.jax._core.arrays import broadcast, leading, reshard, under
from sawlog.jax._runs import seeds
from sawlog.jax._runs.background import Background
from sawlog.jax._runs.processes import OtherProcessSink
from sawlog.jax._runs.run_warnings import RunWarnings, warn_ended
from sawlog.jax._runs.runs import (
    LoggerRun,
    RunState,
    checked_state,
    close_forgotten,
    close_runs_at_exit,
)
from sawlog.sinks import Fallback, Sink, Timeout

EXISTS = ("append", "replace", "error")
PROCESSES = ("first", "each", "any")  # "any" is for loggers around others, which choose themselves
ON_ERROR = ("raise", "fallback")
FALLBACK = "sawlog-fallback"


Start = Callable[[np.ndarray, list[np.ndarray]], int]
"""Starts the run of a key with some settings, and returns its number."""


class RunOwner(CloseOnExit):
    """The runs of one logger. For the arguments see :class:`~sawlog.loggers.Logger`."""

    def __init__(
        self,
        *,
        exists: str = "append",
        on_error: str = "raise",
        fallback: str | os.PathLike[str] = FALLBACK,
        timeout: float | None = None,
        processes: str = "first",
    ) -> None:
        self._processes = one_of("processes", processes, PROCESSES)
        self._exists = one_of("exists", exists, EXISTS)
        self._on_error = one_of("on_error", on_error, ON_ERROR)
        self._fallback = absolute(fallback)
        self._timeout = optional(positive_number, "timeout", timeout)
        self._warnings = RunWarnings(type(self).__name__)
        self._background = Background()
        self._opened: set[str] = set()  # names of all runs that were opened, also finished ones
        self._open: dict[str, LoggerRun] = {}
        self._lock = threading.RLock()
        self._closed = False
        close_runs_at_exit()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def exists(self) -> str:
        """What happens to a run that already exists: "append", "replace" or "error"."""
        return self._exists

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Return the sink for the logs of a run. Subclasses define this.

        Args:
            name: ``seed-7``, or ``group/name-seed-7`` if :meth:`init` was given a name and a group.
            about: metadata of the run, as JSON values: ``key``, the words of its PRNG key,
                ``config``, the settings given to :meth:`init`, and ``name`` and ``group``, if any.
            exists: the option of the logger, or ``"append"`` for a run that this logger opened
                before.

        Returns:
            A sink. Its attribute ``appends``, if true, says that the run had logs already.
        """
        raise NotImplementedError

    # -- opening ----------------------------------------------------------------------------------

    def _start(
        self,
        words: list[int],
        config: dict[str, Any],
        name: str | None,
        group: str | None,
        inside: bool = False,
    ) -> LoggerRun:
        """Open a run, or find it. ``inside`` says that a running program waits for it."""
        full = seeds.full_name(words, name, group)
        given = {"name": name, "group": group}
        about = {"key": words, "config": config, **{k: v for k, v in given.items() if v}}
        try:
            return self._find_or_open(full, about)
        except StoreError:  # perhaps a logger that the program forgot still has it open
            if not close_forgotten(inside):
                raise
        return self._find_or_open(full, about)

    def _find_or_open(self, full: str, about: dict[str, Any]) -> LoggerRun:
        with self._lock:
            if self._closed:
                raise StoreClosedError(
                    f"This {type(self).__name__} is closed and cannot start the run {full!r}. "
                    "Hint: make a new logger, or close this one later."
                )
            run = self._open.get(full)
            if run is not None and self._exists == "error":
                raise StoreExistsError(
                    f"The run {full!r} was started before, and exists='error' refuses to continue "
                    "it. Hint: exists='append' and exists='replace' continue it."
                )
            if run is not None:
                _check_same_config(run, about)
                return run
            if not self._opened:
                close_runs_at_exit()
            sink = self._sink_of(full, about)
            self._opened.add(full)
            ended = functools.partial(warn_ended, self._all_warnings())  # does not hold the logger
            owner = weakref.ref(self)
            self._open[full] = LoggerRun(
                full, about, sink, ended, self._background, owner, self._only_first()
            )
            return self._open[full]

    def _only_first(self) -> bool:
        """Return whether the first of several processes writes, and the others do not."""
        return self._processes == "first" and jax.process_count() > 1

    def _sink_of(self, name: str, about: Mapping[str, Any]) -> Sink:
        """Return the sink of a run, wrapped as ``timeout`` and ``on_error`` require."""
        if self._processes == "first" and jax.process_index():
            return OtherProcessSink()
        if self._processes == "each" and jax.process_count() > 1:
            process = jax.process_index()
            name, about = f"{name}-process-{process}", {**about, "process": process}
        again = name in self._opened
        exists = "append" if again and self._exists == "replace" else self._exists
        make = functools.partial(self.open_run, name, about, exists)
        sink = make() if self._timeout is None else Timeout(make, self._timeout)
        if getattr(sink, "appends", False) and not again:
            self._warnings.appends_to(name)
        self._opened.add(name)
        if self._on_error == "raise":
            return sink
        report = functools.partial(self._warnings.fails, name)
        place = self._fallback / type(self).__name__ / name
        return Fallback(sink, place, report=report, meta=about)

    def _warn_started(self) -> None:
        """Emit pending warnings after runs were opened."""
        self._warnings.started()

    def _all_warnings(self) -> list[RunWarnings]:
        """Return the warnings that may be pending when runs are closed."""
        return [self._warnings]

    # -- finishing --------------------------------------------------------------------------------

    def flush(self, state: RunState | None = None) -> None:
        """Return when everything logged to the runs of ``state``, or to all runs, is durable.

        Raises:
            StoreWriteError: something could not be written.
        """
        self._on_runs(state, LoggerRun.flush, "flush")

    def finish(self, state: RunState | None = None) -> None:
        """Write everything, and end the runs of ``state``, or all of them.

        Runs that are already finished are skipped.

        Raises:
            StoreWriteError: something could not be written. A run that could not be closed stays
                open, and a second call tries again.
        """
        try:
            self._on_runs(state, self._close, "finish")
        finally:
            warn_ended(self._all_warnings())

    def close(self) -> None:
        """Finish all runs, and start no more. A ``with`` block calls this at its end.

        Raises:
            StoreWriteError: something could not be written. The run then stays open.
        """
        self.finish()
        self._closed = True

    def fail(self) -> None:
        """Mark all open runs as failed. A ``with`` block calls this after an exception."""
        for run in self._runs_of(None):
            run.failed = True

    def _close(self, run: LoggerRun) -> None:
        run.close()
        with self._lock:
            if self._open.get(run.name) is run:
                del self._open[run.name]
        run.raise_background_errors()

    def _on_runs(self, state: RunState | None, act: Callable[[LoggerRun], None], what: str) -> None:
        """Wait for pending logs, act on every run even if one fails, then raise the first error."""
        hint = f"call logger.{what}() outside of jit and vmap."
        check_outside(what, hint, getattr(state, "run", None))
        failures: list[Exception] = []
        with _collecting(failures):
            _compat.wait_for_effects()
        self._background.drain()
        for run in self._runs_of(state):
            with _collecting(failures, f"sawlog: in the run {run.name!r}"):
                act(run)
        if failures:
            first, *others = failures
            for error in others:
                note = _last_note(error)
                first.add_note(f"sawlog: besides, {type(error).__name__}: {error}{note}")
            raise first

    def _runs_of(self, state: RunState | None) -> list[LoggerRun]:
        with self._lock:
            runs = list(self._open.values())
        if state is None:
            return runs
        numbers = set(np.ravel(checked_state(state).run).tolist())
        return [run for run in runs if run.number in numbers]

    def _settle(self) -> None:
        """Return when everything logged outside of programs has reached its run."""
        if threading.current_thread() is threading.main_thread():  # others may be callbacks
            self._background.drain()


def start_in_program(begin: Start, words: Any, arrays: list[Any], after: Callable[[], None]) -> Any:
    """Start a run by a host call when the traced program gets here, and return its number.

    Under ``vmap`` one host call starts a run for each lane, and then calls ``after``.
    """

    def host(words: Any, arrays: list[Any]) -> np.ndarray:
        words, arrays = np.asarray(words), [np.asarray(array) for array in arrays]
        numbers = np.zeros(words.shape[:-1], np.int32)
        for lane in np.ndindex(numbers.shape):
            numbers[lane] = begin(words[lane], [array[lane] for array in arrays])
        after()
        return numbers

    def over(lanes: tuple[int, ...]) -> Any:
        @jax.custom_batching.custom_vmap
        def call(words: Any, arrays: list[Any]) -> Any:
            numbers = io_callback(host, jax.ShapeDtypeStruct(lanes, np.int32), words, arrays)
            return reshard(numbers, leading(words, len(lanes), np.int32))

        @call.def_vmap
        def mapped(size: int, is_mapped: Any, words: Any, arrays: list[Any]) -> tuple[Any, bool]:
            flags = jax.tree.leaves(is_mapped)
            pairs = zip(jax.tree.leaves((words, arrays)), flags, strict=True)
            lead = next((leading(x, 1) for x, there in pairs if there))

            def grown(x: Any, there: bool) -> Any:
                return x if there else broadcast(x, under(lead, x), first=1)

            words, arrays = jax.tree.map(grown, (words, arrays), tuple(is_mapped))
            return over((size, *lanes))(words, arrays), True

        return call

    return over(())(words, [jax.lax.stop_gradient(array) for array in arrays])


def check_outside(what: str, hint: str, number: Any = None) -> None:
    """Check that a method is not called while a program is being traced.

    Raises:
        ArgumentError: it is.
    """
    if not _compat.not_tracing() or _compat.is_tracer(number):
        raise ArgumentError(
            f"{what} was called inside of a program that is being traced, where nothing has been "
            f"written yet. Hint: {hint}"
        )


def _check_same_config(run: LoggerRun, about: Mapping[str, Any]) -> None:
    if run.about["config"] != about["config"]:
        raise StoreExistsError(
            f"The run {run.name!r} was started with the config {run.about['config']}, and cannot "
            f"continue with {about['config']}. Hint: use another key for each configuration, as "
            "with jax.random.fold_in(key, i), or finish the run first."
        )


def _last_note(error: BaseException) -> str:
    """Return the last note of an error, which names its run."""
    notes = getattr(error, "__notes__", ())
    return f" ({notes[-1]})" if notes else ""


@contextlib.contextmanager
def _collecting(failures: list[Exception], note: str = "") -> Iterator[None]:
    """Append an exception raised inside to a list, and continue."""
    try:
        yield
    except Exception as error:
        if note:
            error.add_note(note)
        failures.append(error)
