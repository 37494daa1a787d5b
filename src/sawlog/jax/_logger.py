"""The base of all loggers: everything but where the logs go."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import jax
import numpy as np

from sawlog._paths import absolute
from sawlog.errors import ArgumentError, StoreClosedError, StoreExistsError
from sawlog.jax import _compat, _runs, _seeds, _sending
from sawlog.jax._failures import Failures
from sawlog.jax._logdict import logdict
from sawlog.jax._primitive import tap_effect
from sawlog.jax._runs import Run, RunState, Sink, checked_state, number_of
from sawlog.jax._sampling import read_sampling
from sawlog.jax._select import check_prefix, selection
from sawlog.jax._spool import spool
from sawlog.jax._wrap import check_callable, jit_options
from sawlog.sinks import Fallback

Self = TypeVar("Self", bound="Logger")

EXISTS = ("append", "replace", "error")
ON_ERROR = ("raise", "fallback")
FALLBACK = "sawlog-fallback"


class Logger:
    """Writes logs from inside of JAX programs, one run for each PRNG key.

    A kind of logger says in :meth:`open_run` where the logs of a run go; everything else is here.

    Args:
        exists: what a run that is there already means: ``"append"`` to it, ``"replace"`` it or
            ``"error"``.
        on_error: what to do when the place of a run fails while a program goes on: ``"raise"``, or
            ``"fallback"``: the program goes on and the logs go to a store on disk. That is
            reported by a :class:`~sawlog.errors.SinkWarning`, and again when the run ends.
        fallback: the folder in which those stores are made.
    """

    def __init__(
        self,
        *,
        exists: str = "append",
        on_error: str = "raise",
        fallback: str | os.PathLike[str] = FALLBACK,
    ) -> None:
        self._exists = _chosen("exists", exists, EXISTS)
        self._on_error = _chosen("on_error", on_error, ON_ERROR)
        self._fallback = absolute(fallback)
        self._failures = Failures(type(self).__name__)
        self._seen = False
        self._open: dict[str, Run] = {}
        self._lock = threading.RLock()
        self._closed = False
        _runs.close_at_exit()

    @property
    def exists(self) -> str:
        """What a run that is there already means."""
        return self._exists

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> Sink:
        """Where the logs of the run ``name`` go.

        ``about`` is what to note with it, as JSON: ``key``, the words of its PRNG key, and
        ``config``, what :meth:`init` was given. ``exists`` is that of the logger.
        """
        raise NotImplementedError

    def _sink_of(self, name: str, about: Mapping[str, Any]) -> Sink:
        """The sink of a run, with what is to be done when it fails."""
        sink = self.open_run(name, about, self._exists)
        if self._on_error == "raise":
            return sink
        report = functools.partial(self._failures.report, name)
        place = self._fallback / type(self).__name__ / name
        return Fallback(sink, place, report=report, meta=about)

    def _ended(self) -> None:
        """Tell what is to be told after runs were closed."""
        self._failures.tell()

    @staticmethod
    def name_of(key: Any) -> str:
        """What the run of a PRNG key or seed is called.

        Raises:
            ArgumentError: it is no key, or several.

        >>> Logger.name_of(jax.random.key(7)), Logger.name_of(7)
        ('seed-7', 'seed-7')
        """
        return _seeds.run_name(np.asarray(_seeds.key_data(key)).tolist())

    # -- in a program ----------------------------------------------------------------------------

    def init(self, key: Any, **config: Any) -> RunState:
        """Start the run of a PRNG key, or go on with it, when the program comes here.

        Args:
            key: a key as of ``jax.random.key`` or ``jax.random.PRNGKey``, or a whole number. The
                same key always means the same run. Under ``vmap`` each key is a run of its own.
            config: settings to note with the run: numbers, strings, arrays, dicts and lists; they
                may be traced.

        Raises:
            ArgumentError: the key is no key, or a setting cannot be noted.
            StoreExistsError: the run exists and may not be appended to, or has other settings.
        """
        data = _seeds.key_data(key)
        arrays, joined = _seeds.split_config(config)

        def begin(words: np.ndarray, values: Sequence[Any]) -> int:
            return self._start(words.tolist(), joined(values))

        if _compat.not_tracing():
            return RunState(np.int32(begin(np.asarray(data), arrays)))
        return RunState(_sending.start(begin, data, arrays))

    def log(self, state: RunState, logs: Mapping[str, Any], /, **steps: Any) -> None:
        """Write logs to a run, from inside of a program or outside.

        ``logs`` is a :class:`sawlog.logdict`, or a dict of values as for :func:`sawlog.log`, which
        are one entry each, with the given steps.

        Raises:
            ArgumentError: the state is not that of one run, the logs are neither a logdict nor a
                dict, or a logdict is given with steps.
            LogValueError: a value cannot be logged.
        """
        if isinstance(logs, logdict):
            if steps:
                raise ArgumentError("log(state, logs) takes no steps: a logdict has its own.")
        elif isinstance(logs, Mapping):
            logs = _sending.one_entry(logs, steps)
        else:
            kind = type(logs).__name__
            raise ArgumentError(f"log(state, logs) takes a logdict or a dict, got {kind}.")
        _sending.write(logs, number_of(state))

    def spool(self, fun: Callable[..., Any], state: RunState, **options: Any) -> Callable[..., Any]:
        """Make a function like ``fun`` that writes all its logs to a run at the end of the call.

        ``options`` are those of :func:`sawlog.spool`.
        """
        number = number_of(state)
        spooled = spool(fun, **options)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if not _compat.not_tracing() or _compat.is_tracer(number):
                out, logs = spooled(*args, **kwargs)
                _sending.write(logs, number)
                return out
            with _runs.watched(_runs.run_of(number)):
                out, logs = spooled(*args, **kwargs)
                _sending.write(logs, number)
            return out

        return writing

    def tap(
        self,
        fun: Callable[..., Any],
        state: RunState,
        argnames: Any = None,
        tags: Any = None,
        prefix: str = "",
        *,
        buffer: int | None = None,
        interval: int | None = None,
        reduce: Any = None,
        static_argnums: Any = None,
        static_argnames: Any = None,
    ) -> Callable[..., Any]:
        """Make a function like ``fun`` that writes its logs to a run as they happen.

        The options are those of :func:`sawlog.tap`. Called outside of any transformation, it
        returns when everything was written, and raises what went wrong there.
        """
        check_callable(fun, "tap")
        check_prefix(prefix)
        sampling = read_sampling(interval, reduce, buffer)
        number = number_of(state)
        static = jit_options(static_argnums, static_argnames)
        program = _sending.tapping(fun, selection(argnames, tags), prefix, sampling, static)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if not _compat.not_tracing():
                _compat.prepare_order(tap_effect)
                return program(args, kwargs, number)[0]
            with _runs.holding(_runs.run_of(number)) as own:
                out = program(args, kwargs, own)[0]
                jax.effects_barrier()
            return out

        return writing

    # -- the life of runs --------------------------------------------------------------------------

    def _start(self, words: list[int], config: dict[str, Any]) -> int:
        """Open a run, or find it; its number."""
        name, about = _seeds.run_name(words), {"key": words, "config": config}
        with self._lock:
            if self._closed:
                raise StoreClosedError(
                    f"This {type(self).__name__} is closed, and cannot start the run {name!r}. "
                    "Hint: make a new one, or close it later."
                )
            run = self._open.get(name)
            if run is not None and self._exists == "append":
                _check_same(run, about)
                return run.number
            if run is not None and self._exists == "error":
                raise StoreExistsError(
                    f"The run {name!r} was started before, and exists='error' refuses to go on "
                    "with it. Hint: exists='append' goes on, exists='replace' starts anew."
                )
            if run is not None:
                self._close(run)
            self._open[name] = Run(name, about, self._sink_of(name, about), self._ended)
            if not self._seen:
                self._seen = True
                _runs.close_first_at_exit()
            return self._open[name].number

    def _close(self, run: Run) -> None:
        run.close()
        with self._lock:
            if self._open.get(run.name) is run:
                del self._open[run.name]

    def _on_runs(self, state: RunState | None, act: Callable[[Run], None], what: str) -> None:
        """Act on the runs of a state, or on all, also where one fails; then raise what did.

        Before that, wait until nothing is on its way to them any more.
        """
        if not _compat.not_tracing() or _compat.is_tracer(getattr(state, "run", None)):
            raise ArgumentError(
                f"{what} was called inside of a program that is being traced, where nothing has "
                f"been written yet. Hint: call logger.{what}() outside of jit and vmap."
            )
        failures: list[Exception] = []
        with _kept(failures):
            jax.effects_barrier()
        for run in self._runs_of(state):
            with _kept(failures, f"sawlog: in the run {run.name!r}"):
                act(run)
        if failures:
            raise failures[0]

    def _runs_of(self, state: RunState | None) -> list[Run]:
        with self._lock:
            runs = list(self._open.values())
        if state is None:
            return runs
        numbers = set(np.ravel(checked_state(state).run).tolist())
        return [run for run in runs if run.number in numbers]

    def flush(self, state: RunState | None = None) -> None:
        """Return when everything logged to the runs of ``state``, or to all, is safe.

        Raises:
            StoreWriteError: it could not be made safe.
        """
        self._on_runs(state, Run.flush, "flush")

    def finish(self, state: RunState | None = None) -> None:
        """End the runs of ``state``, or all of them, once everything is written.

        Runs that are finished already are left alone.

        Raises:
            StoreWriteError: something could not be written. The run is then still open.
        """
        try:
            self._on_runs(state, self._close, "finish")
        finally:
            self._ended()

    def close(self) -> None:
        """Finish all runs, and start no more. Also done at the end of a ``with``.

        Raises:
            StoreWriteError: something could not be written. The run is then still open.
        """
        self.finish()
        self._closed = True

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for run in self._runs_of(None) if error is not None else []:
            run.failed = True
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Besides, the logger could not be closed: {failure}")


def _chosen(what: str, given: str, among: Sequence[str]) -> str:
    if given not in among:
        listed = ", ".join(map(repr, among))
        raise ArgumentError(f"{what} must be one of {listed}, got {given!r}.")
    return given


def _check_same(run: Run, about: Mapping[str, Any]) -> None:
    if run.about != about:
        raise StoreExistsError(
            f"The run {run.name!r} was started with the config {run.about['config']}, and cannot "
            f"go on with {about['config']}. Hint: use another key for each configuration, as with "
            "jax.random.fold_in(key, i), or finish the run first."
        )


@contextlib.contextmanager
def _kept(failures: list[Exception], note: str = "") -> Iterator[None]:
    """Put what is raised inside into a list, and go on."""
    try:
        yield
    except Exception as error:
        if note:
            error.add_note(note)
        failures.append(error)
