"""The base of all loggers: everything but where the logs go."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from sawlog._paths import absolute
from sawlog.errors import ArgumentError, StoreClosedError, StoreError, StoreExistsError
from sawlog.jax import _compat
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._core.select import check_prefix, selection
from sawlog.jax._core.static_arguments import jit_options
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs import dispatch as _sending
from sawlog.jax._runs import python_loops as _outside
from sawlog.jax._runs import runs as _runs
from sawlog.jax._runs import seed_programs as _seeded
from sawlog.jax._runs import seeds as _seeds
from sawlog.jax._runs.appends import Appends
from sawlog.jax._runs.background import Background
from sawlog.jax._runs.call_forms import Forms, Leaves
from sawlog.jax._runs.failures import Failures
from sawlog.jax._runs.runs import Run, RunState, Sink, checked_state, number_of
from sawlog.jax._transforms.spool import spool
from sawlog.jax._transforms.tap_sampling import read_sampling
from sawlog.sinks import Fallback, Timeout
from sawlog.sinks._timeout import checked_timeout

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
        timeout: seconds after which a place that does not answer has failed; None waits for ever.

    What is logged outside of programs is written by a thread, once the device has computed it: a
    Python loop around a jitted step does not wait. At most 256 calls or 64 MiB are on their way.
    What goes wrong there is raised by the next call for the run outside of programs, and nothing of
    that call is lost: ``log`` has taken its values, and what would run a program has not run it.
    ``flush`` and ``finish`` raise it when they are done.
    """

    def __init__(
        self,
        *,
        exists: str = "append",
        on_error: str = "raise",
        fallback: str | os.PathLike[str] = FALLBACK,
        timeout: float | None = None,
    ) -> None:
        self._exists = _chosen("exists", exists, EXISTS)
        self._on_error = _chosen("on_error", on_error, ON_ERROR)
        self._fallback = absolute(fallback)
        self._timeout = checked_timeout(timeout)
        self._failures = Failures(type(self).__name__)
        self._appends = Appends(type(self).__name__)
        self._background = Background()
        self._forms = Forms()
        self._programs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._recent: list[tuple[tuple, Any]] = []
        self._begun: set[str] = set()  # the runs that this logger opened, also those that ended
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

        ``name`` is ``seed-7``, or ``group/name-seed-7`` where :meth:`init` was given these.
        ``about`` is what to note with it, as JSON: ``key``, the words of its PRNG key, ``config``,
        what :meth:`init` was given, and ``name`` and ``group`` where there are such. ``exists`` is
        that of the logger, or ``"append"`` for a run that this logger had open before. A sink with
        an attribute ``appends`` that is true says that there was something in its place.
        """
        raise NotImplementedError

    def _sink_of(self, name: str, about: Mapping[str, Any]) -> Sink:
        """The sink of a run, with what is to be done when it fails or does not answer."""
        again = name in self._begun
        exists = "append" if again and self._exists == "replace" else self._exists
        sink = self._opened(functools.partial(self.open_run, name, about, exists))
        if getattr(sink, "appends", False) and not again:
            self._appends.add(name)
        self._begun.add(name)
        if self._on_error == "raise":
            return sink
        report = functools.partial(self._failures.report, name)
        place = self._fallback / type(self).__name__ / name
        return Fallback(sink, place, report=report, meta=about)

    def _opened(self, make: Callable[[], Sink]) -> Sink:
        return make() if self._timeout is None else Timeout(make, self._timeout)

    def _began(self) -> None:
        """Tell what is to be told after runs were opened."""
        self._appends.tell_first()

    def _ended(self) -> None:
        """Tell what is to be told after runs were closed."""
        _tell(self._tellers())

    def _tellers(self) -> list[tuple[Appends, Failures]]:
        """Who has something to tell then."""
        return [(self._appends, self._failures)]

    @staticmethod
    def name_of(key: Any) -> str:
        """What the run of a PRNG key or seed is called.

        Raises:
            ArgumentError: it is no key, or several.

        >>> import jax
        >>> Logger.name_of(jax.random.key(7)), Logger.name_of(7)
        ('seed-7', 'seed-7')
        """
        return _seeds.run_name(np.asarray(_seeds.key_data(key)).tolist())

    # -- in a program ----------------------------------------------------------------------------

    def init(
        self, key: Any, *, name: str | None = None, group: str | None = None, **config: Any
    ) -> RunState:
        """Start the run of a PRNG key, or go on with it, when the program comes here.

        Args:
            key: a key as of ``jax.random.key`` or ``jax.random.PRNGKey``, or a whole number. The
                same key always means the same run. Under ``vmap`` each key is a run of its own.
            name: what to call the run, before its key: ``"ppo"`` makes ``ppo-seed-7``, so that
                runs of several seeds have different names.
            group: what the run belongs to: the group of trackers that have groups, a folder
                around the runs elsewhere.
            config: settings to note with the run: numbers, strings, arrays, dicts and lists; they
                may be traced.

        Raises:
            ArgumentError: the key is no key, a name is none, or a setting cannot be noted.
            StoreExistsError: the run exists and may not be appended to, or has other settings.
        """
        data = _seeds.key_data(key)
        _seeds.check_names(name, group)
        arrays, joined = _seeds.split_config(config)

        inside = not _compat.not_tracing()

        def begin(words: np.ndarray, values: Sequence[Any]) -> int:
            return self._start(words.tolist(), joined(values), name, group, inside).number

        if inside:
            return RunState(_sending.start(begin, data, arrays, self._began))
        number = begin(np.asarray(data), arrays)
        self._began()
        return RunState(np.int32(number))

    def log(self, state: RunState, logs: Mapping[str, Any], /, **steps: Any) -> None:
        """Write logs to a run, from inside of a program or outside.

        ``logs`` is a :class:`sawlog.logdict`, or a dict of values as for :func:`sawlog.log`, which
        are one entry each, with the given steps. Outside of programs, values that a device still
        computes are written when they are there, and this does not wait for them.

        Raises:
            ArgumentError: the state is not that of one run, the logs are neither a logdict nor a
                dict, or a logdict is given with steps.
            LogValueError: a value cannot be logged.
        """
        number = number_of(state)
        if isinstance(logs, logdict):
            if steps:
                raise ArgumentError("log(state, logs) takes no steps: a logdict has its own.")
        elif not isinstance(logs, Mapping):
            kind = type(logs).__name__
            raise ArgumentError(f"log(state, logs) takes a logdict or a dict, got {kind}.")
        if not _compat.not_tracing() or _compat.is_tracer(number):
            whole = logs if isinstance(logs, logdict) else _sending.one_entry(logs, steps)
            _sending.send_whole(whole, number)
        elif isinstance(logs, logdict):
            _outside.log(_runs.run_of(number), Leaves.of(logs))
        else:
            own = self._forms.read(logs, steps, _sending.one_entry)
            _outside.log(_runs.run_of(number), own)

    def spool(self, fun: Callable[..., Any], state: RunState, **options: Any) -> Callable[..., Any]:
        """Make a function like ``fun`` that writes all its logs to a run at the end of the call.

        ``options`` are those of :func:`sawlog.spool`. Called outside of any transformation, it
        returns as soon as ``fun`` would; the logs are written when the device is done.
        """
        number = number_of(state)
        return self._made(("spool", fun, options, number), self._spooled, fun, number, options)

    def _spooled(self, fun: Callable[..., Any], number: Any, options: dict[str, Any]) -> Any:
        spooled = spool(fun, **options)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if _compat.not_tracing() and not _compat.is_tracer(number):
                return _outside.spool(_runs.run_of(number), spooled, args, kwargs)
            out, logs = spooled(*args, **kwargs)
            _sending.send_whole(logs, number)
            return out

        return writing

    def _made(self, what: tuple, make: Callable[..., Any], *args: Any) -> Any:
        """What ``make`` makes; the last few are remembered, for loops that ask again each time."""
        if not isinstance(what[-1], np.integer):  # traced, or still to be computed
            return make(*args)
        for known, made in self._recent:
            if known[1] is what[1] and known == what:
                return made
        made = make(*args)
        self._recent = [*self._recent[-3:], (what, made)]
        return made

    def run(
        self,
        fun: Callable[..., Any],
        *,
        name: str | None = None,
        group: str | None = None,
        config: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
        in_axes: Sequence[int | None] | None = None,
        return_logs: bool = False,
        **options: Any,
    ) -> Callable[..., Any]:
        """Make a function that runs ``fun`` for one seed or many, one run of the logger for each.

        ``logger.run(train)(keys, *args)`` is ``jax.jit`` of ``train(key, *args)``, mapped by
        ``jax.vmap`` over the first argument where that holds several keys or seeds; ``train`` is
        written for one. The logs leave the program as outputs and are written by the host, so the
        program has no callbacks, and JAX keeps it in its persistent compilation cache. Runs are
        opened before it starts.

        Args:
            fun: the function of one key or seed, and of whatever else.
            name, group: those of :meth:`init`.
            config: settings to note with each run, as for :meth:`init`; or a function of the
                arguments of ``fun`` that returns them, called for each seed.
            in_axes: for each argument whether it is mapped as well, as for ``jax.vmap``; by
                default only the first is, ``(0, None, ...)``.
            return_logs: whether to return ``(output, logs)``; the logs have the seeds in front.
            options: those of :func:`sawlog.spool`.

        Returns:
            A function that returns the output of ``fun``, with an axis of seeds in front where
            there are several. It does not wait for the device.

        Raises:
            ArgumentError: from the function: the first argument is no key or seed, or it was
                called inside of a program.

        >>> import jax, jax.numpy as jnp, sawlog
        >>> from sawlog.loggers import MemoryLogger
        >>> def train(seed, lr):
        ...     sawlog.log({"x": seed * lr})
        ...     return seed * lr
        >>> logger = MemoryLogger()
        >>> print(logger.run(train, config={"lr": 0.5})(jnp.arange(3), 0.5))
        [0.  0.5 1. ]
        >>> logger.runs["seed-2"].logs["x"]
        array([1.], dtype=float32)
        """
        _seeds.check_names(name, group)
        program = _seeded.program(self._programs, fun, in_axes, options)

        def begin(words: np.ndarray, settings: Mapping[str, Any]) -> Run:
            arrays, joined = _seeds.split_config(settings)
            return self._start(words.tolist(), joined(arrays), name, group)

        @functools.wraps(fun)
        def running(keys: Any, *args: Any, **kwargs: Any) -> Any:
            _check_outside("run", "state = logger.init(key); logger.spool(train, state)(key)")
            keys, lanes, words = _seeds.key_lanes(keys)
            settings = _seeded.settings(config, lanes, in_axes, (keys, *args), kwargs)
            each = words.reshape(-1, words.shape[-1])
            _check_different(each)
            runs = [begin(*pair) for pair in zip(each, settings, strict=True)]
            self._began()
            out, logs = _outside.run(self._background, runs, program, lanes, (keys, *args), kwargs)
            return (out, logs) if return_logs else out

        return running

    def tap(
        self,
        fun: Callable[..., Any],
        state: RunState,
        argnames: Any = None,
        tags: Any = None,
        prefix: str = "",
        *,
        buffer: int | None = None,
        interval: Any = None,
        reduce: Any = None,
        keep_logs: bool = False,
        static_argnums: Any = None,
        static_argnames: Any = None,
    ) -> Callable[..., Any]:
        """Make a function like ``fun`` that writes its logs to a run as they happen.

        The options are those of :func:`sawlog.tap`. Called outside of any transformation, it
        returns as soon as JAX does, which on a CPU is when the program is over.
        """
        number = number_of(state)
        selected, rate = (argnames, tags, prefix, keep_logs), (interval, reduce, buffer)
        static = (static_argnums, static_argnames)
        what = ("tap", fun, selected, rate, static, number)
        return self._made(what, self._tapped, fun, number, selected, rate, static)

    def _tapped(
        self, fun: Callable[..., Any], number: Any, selected: Any, rate: Any, statics: Any
    ) -> Any:
        check_callable(fun, "tap")
        argnames, tags, prefix, keep_logs = selected
        check_prefix(prefix)
        sampling = read_sampling(*rate)
        static = jit_options(*statics)
        chosen = selection(argnames, tags)
        program = _sending.tapping(fun, chosen, prefix, sampling, static, keep_logs)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if _compat.not_tracing() and not _compat.is_tracer(number):
                return _outside.tap(_runs.run_of(number), program, args, kwargs)
            _compat.prepare_order(tap_effect)
            return program(args, kwargs, number)[0]

        return writing

    # -- the life of runs --------------------------------------------------------------------------

    def _start(
        self,
        words: list[int],
        config: dict[str, Any],
        name: str | None,
        group: str | None,
        inside: bool = False,
    ) -> Run:
        """Open a run, or find it; ``inside`` of a program, which waits for it, or not."""
        full = _seeds.full_name(words, name, group)
        given = {"name": name, "group": group}
        about = {"key": words, "config": config, **{k: v for k, v in given.items() if v}}
        try:
            return self._found_or_opened(full, about)
        except StoreError:  # perhaps a logger that the program forgot still has it open
            if not _runs.close_forgotten(inside):
                raise
        return self._found_or_opened(full, about)

    def _found_or_opened(self, full: str, about: dict[str, Any]) -> Run:
        with self._lock:
            if self._closed:
                raise StoreClosedError(
                    f"This {type(self).__name__} is closed, and cannot start the run {full!r}. "
                    "Hint: make a new one, or close it later."
                )
            run = self._open.get(full)
            if run is not None and self._exists == "error":
                raise StoreExistsError(
                    f"The run {full!r} was started before, and exists='error' refuses to go on "
                    "with it. Hint: exists='append' and exists='replace' go on with it."
                )
            if run is not None:
                _check_same(run, about)
                return run
            if not self._begun:
                _runs.close_first_at_exit()
            sink = self._sink_of(full, about)
            self._begun.add(full)
            ended = functools.partial(_tell, self._tellers())  # does not hold on to the logger
            owner = weakref.ref(self)
            self._open[full] = Run(full, about, sink, ended, self._background, owner)
            return self._open[full]

    def _close(self, run: Run) -> None:
        run.close()
        with self._lock:
            if self._open.get(run.name) is run:
                del self._open[run.name]
        run.raise_troubles()

    def _on_runs(self, state: RunState | None, act: Callable[[Run], None], what: str) -> None:
        """Act on the runs of a state, or on all, also where one fails; then raise what did.

        Before that, wait until nothing is on its way to them any more.
        """
        hint = f"call logger.{what}() outside of jit and vmap."
        _check_outside(what, hint, getattr(state, "run", None))
        failures: list[Exception] = []
        with _kept(failures):
            _compat.wait_for_effects()
        self._background.drain()
        for run in self._runs_of(state):
            with _kept(failures, f"sawlog: in the run {run.name!r}"):
                act(run)
        if failures:
            first, *others = failures
            for error in others:
                first.add_note(f"sawlog: besides, {type(error).__name__}: {error}{_noted(error)}")
            raise first

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

    def _settle(self) -> None:
        """Return when all that was logged outside of programs is with its run."""
        if threading.current_thread() is threading.main_thread():  # others may be callbacks
            self._background.drain()

    def finish(self, state: RunState | None = None) -> None:
        """End the runs of ``state``, or all of them, once everything is written.

        Runs that are finished already are left alone.

        Raises:
            StoreWriteError: something could not be written. Where closing a run failed, that one is
                still open, and a second call tries again.
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


def _tell(tellers: Sequence[tuple[Appends, Failures]]) -> None:
    for appends, failures in tellers:
        appends.tell_rest()
        failures.tell()


def _check_outside(what: str, hint: str, number: Any = None) -> None:
    if not _compat.not_tracing() or _compat.is_tracer(number):
        raise ArgumentError(
            f"{what} was called inside of a program that is being traced, where nothing has been "
            f"written yet. Hint: {hint}"
        )


def _chosen(what: str, given: str, among: Sequence[str]) -> str:
    if given not in among:
        listed = ", ".join(map(repr, among))
        raise ArgumentError(f"{what} must be one of {listed}, got {given!r}.")
    return given


def _check_different(words: np.ndarray) -> None:
    """Refuse to write two lanes to one run."""
    found, counts = np.unique(words, axis=0, return_counts=True)
    if (counts > 1).any():
        name = _seeds.run_name(found[np.argmax(counts)].tolist())
        raise ArgumentError(
            f"The same key is there more than once: two lanes would write to the run {name!r}. "
            "Hint: give each lane a key of its own, as with jax.random.split(key, n)."
        )


def _check_same(run: Run, about: Mapping[str, Any]) -> None:
    if run.about["config"] != about["config"]:
        raise StoreExistsError(
            f"The run {run.name!r} was started with the config {run.about['config']}, and cannot "
            f"go on with {about['config']}. Hint: use another key for each configuration, as with "
            "jax.random.fold_in(key, i), or finish the run first."
        )


def _noted(error: BaseException) -> str:
    """The last note of an error, which says of which run it is."""
    notes = getattr(error, "__notes__", ())
    return f" ({notes[-1]})" if notes else ""


@contextlib.contextmanager
def _kept(failures: list[Exception], note: str = "") -> Iterator[None]:
    """Put what is raised inside into a list, and go on."""
    try:
        yield
    except Exception as error:
        if note:
            error.add_note(note)
        failures.append(error)
