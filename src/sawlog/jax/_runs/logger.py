"""``Logger``, the base of all loggers: writes logs from inside of programs to runs."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax import _compat
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._core.select import check_prefix, selection
from sawlog.jax._core.static_arguments import jit_options
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs import python_loops, seed_programs, seeds
from sawlog.jax._runs.call_forms import Forms, Leaves, one_entry
from sawlog.jax._runs.run_owner import FALLBACK, RunOwner, check_outside, start_in_program
from sawlog.jax._runs.runs import LoggerRun, RunState, number_of, run_of
from sawlog.jax._transforms.spool import spool
from sawlog.jax._transforms.tap import send_whole, tap_to_run
from sawlog.jax._transforms.tap_sampling import read_sampling


class Logger(RunOwner):
    """Writes logs from inside of JAX programs, one run for each PRNG key.

    A subclass defines :meth:`open_run`, which returns the sink of a run.

    Args:
        exists: what to do with a run that already exists: ``"append"`` to it, ``"replace"`` it, or
            raise an ``"error"``.
        on_error: what to do when the sink of a run fails while a program runs: ``"raise"``, or
            ``"fallback"``: the program continues and the logs go to a store on disk. A
            :class:`~sawlog.errors.SinkWarning` reports that, and another one when the run ends.
        fallback: the folder of these stores.
        timeout: seconds after which a sink that does not respond has failed; None waits forever.
        processes: which processes of a ``jax.distributed`` job write: ``"first"``, or ``"each"``,
            to a run of its own whose name ends in ``-process-1``.

    Logs from outside of programs are written by a thread, once the device has computed them: a
    Python loop around a jitted step does not wait. At most 256 calls or 64 MiB wait to be written.
    An error in that thread is raised by the next call for the run outside of programs, and that
    call loses nothing: ``log`` has taken its values, and a call that runs a program has not run it.
    ``flush`` and ``finish`` raise it after they have done their work.
    """

    def __init__(
        self,
        *,
        exists: str = "append",
        on_error: str = "raise",
        fallback: str | os.PathLike[str] = FALLBACK,
        timeout: float | None = None,
        processes: str = "first",
    ) -> None:
        super().__init__(
            exists=exists,
            on_error=on_error,
            fallback=fallback,
            timeout=timeout,
            processes=processes,
        )
        self._forms = Forms()
        self._programs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._recent: list[tuple[tuple, Any]] = []

    @staticmethod
    def name_of(key: Any) -> str:
        """Return the name of the run of a PRNG key or seed.

        Raises:
            ArgumentError: the argument is not one key or seed.

        >>> import jax
        >>> Logger.name_of(jax.random.key(7)), Logger.name_of(7)
        ('seed-7', 'seed-7')
        """
        return seeds.run_name(np.asarray(seeds.key_data(key)).tolist())

    def init(
        self, key: Any, *, name: str | None = None, group: str | None = None, **config: Any
    ) -> RunState:
        """Start the run of a PRNG key, or continue it, when the program gets here.

        Args:
            key: a key made by ``jax.random.key`` or ``jax.random.PRNGKey``, or an integer seed. The
                same key always means the same run. Under ``vmap`` each key has its own run.
            name: the beginning of the run's name: ``"ppo"`` makes ``ppo-seed-7``. The key follows,
                so that runs of several seeds have different names.
            group: the group of the run, in trackers that have groups; elsewhere a folder around the
                runs.
            config: settings to save with the run: numbers, strings, arrays, dicts and lists. They
                may be traced.

        Raises:
            ArgumentError: the key is not valid, a name is not, or a setting cannot be saved.
            StoreExistsError: the run exists and ``exists="error"``, or it has other settings.
        """
        data = seeds.key_data(key)
        seeds.check_names(name, group)
        arrays, joined = seeds.split_config(config)
        inside = not _compat.not_tracing()

        def begin(words: np.ndarray, values: Sequence[Any]) -> int:
            return self._start(words.tolist(), joined(values), name, group, inside).number

        if inside:
            return RunState(start_in_program(begin, data, arrays, self._warn_started))
        number = begin(np.asarray(data), arrays)
        self._warn_started()
        return RunState(np.int32(number))

    def log(self, state: RunState, logs: Mapping[str, Any], /, **steps: Any) -> None:
        """Write logs to a run, from inside of a program or outside.

        ``logs`` is a :class:`sawlog.logdict`, or a dict of values as for :func:`sawlog.log`, each
        of which is one entry with the given steps. Outside of programs this does not wait for the
        device: values are written once they are computed.

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
            raise ArgumentError(f"log(state, logs) takes a logdict or a dict; got {kind}.")
        if not _compat.not_tracing() or _compat.is_tracer(number):
            whole = logs if isinstance(logs, logdict) else one_entry(logs, steps)
            send_whole(whole, number)
        elif isinstance(logs, logdict):
            python_loops.log(run_of(number), Leaves.of(logs))
        else:
            own = self._forms.read(logs, steps)
            python_loops.log(run_of(number), own)

    def spool(self, fun: Callable[..., Any], state: RunState, **options: Any) -> Callable[..., Any]:
        """Return a function like ``fun`` that writes all its logs to a run at the end of the call.

        ``options`` are those of :func:`sawlog.spool`. Called outside of any transformation, the
        function returns as soon as ``fun`` would; the logs are written when the device is done.
        """
        number = number_of(state)
        return self._remembered(("spool", fun, options, number), self._spooled, fun, options)

    def _spooled(self, number: Any, fun: Callable[..., Any], options: dict[str, Any]) -> Any:
        spooled = spool(fun, **options)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if _compat.not_tracing() and not _compat.is_tracer(number):
                return python_loops.spool(run_of(number), spooled, args, kwargs)
            out, logs = spooled(*args, **kwargs)
            send_whole(logs, number)
            return out

        return writing

    def _remembered(self, what: tuple, make: Callable[..., Any], *args: Any) -> Any:
        """Return ``make(number, *args)``, remembered for loops that ask again in each iteration.

        ``what`` describes the result; its last item is the number of the run.
        """
        number = what[-1]
        if not isinstance(number, np.integer):  # traced, or still to be computed
            return make(number, *args)
        for known, made in self._recent:
            if known[1] is what[1] and known == what:
                return made
        made = make(number, *args)
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
        """Return a function that runs ``fun`` for one seed or many, with one run for each.

        ``logger.run(train)(keys, *args)`` is ``jax.jit`` of ``train(key, *args)``, mapped by
        ``jax.vmap`` over the first argument if that contains several keys or seeds; ``train`` is
        written for one. The logs leave the program as outputs and are written by the host, so the
        program has no callbacks, and JAX keeps it in its persistent compilation cache. Runs are
        opened before it starts.

        Args:
            fun: a function of one key or seed, and of other arguments.
            name, group: as for :meth:`init`.
            config: settings to save with each run, as for :meth:`init`; or a function of the
                arguments of ``fun`` that returns them, called for each seed.
            in_axes: for each argument whether it is mapped as well, as for ``jax.vmap``; by
                default only the first is, ``(0, None, ...)``.
            return_logs: whether to return ``(output, logs)``; the logs have the seed axis in front.
            options: those of :func:`sawlog.spool`.

        Returns:
            A function that returns the output of ``fun``, with an axis of seeds in front if there
            are several. It does not wait for the device.

        Raises:
            ArgumentError: from the function: the first argument is not a key or seed, or the
                function was called inside of a program.

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
        seeds.check_names(name, group)
        program = seed_programs.program(self._programs, fun, in_axes, options)

        def begin(words: np.ndarray, settings: Mapping[str, Any]) -> LoggerRun:
            arrays, joined = seeds.split_config(settings)
            return self._start(words.tolist(), joined(arrays), name, group)

        @functools.wraps(fun)
        def running(keys: Any, *args: Any, **kwargs: Any) -> Any:
            check_outside("run", "state = logger.init(key); logger.spool(train, state)(key)")
            keys, lanes, words = seeds.key_lanes(keys)
            args = (keys, *args)
            settings = seed_programs.settings(config, lanes, in_axes, args, kwargs)
            each = words.reshape(-1, words.shape[-1])
            _check_different(each)
            runs = [begin(*pair) for pair in zip(each, settings, strict=True)]
            self._warn_started()
            out, logs = python_loops.run(self._background, runs, program, lanes, args, kwargs)
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
        """Return a function like ``fun`` that writes its logs to a run as they happen.

        The options are those of :func:`sawlog.tap`. Called outside of any transformation, the
        function returns as soon as JAX does, which on a CPU is when the program has ended.
        """
        number = number_of(state)
        selected, rate = (argnames, tags, prefix, keep_logs), (interval, reduce, buffer)
        static = (static_argnums, static_argnames)
        what = ("tap", fun, selected, rate, static, number)
        return self._remembered(what, self._tapped, fun, selected, rate, static)

    def _tapped(
        self, number: Any, fun: Callable[..., Any], selected: Any, rate: Any, statics: Any
    ) -> Any:
        check_callable(fun, "tap")
        argnames, tags, prefix, keep_logs = selected
        check_prefix(prefix)
        sampling = read_sampling(*rate)
        static = jit_options(*statics)
        chosen = selection(argnames, tags)
        program = tap_to_run(fun, chosen, prefix, sampling, static, keep_logs)

        @functools.wraps(fun)
        def writing(*args: Any, **kwargs: Any) -> Any:
            if _compat.not_tracing() and not _compat.is_tracer(number):
                return python_loops.tap(run_of(number), program, args, kwargs)
            _compat.prepare_order(tap_effect)
            return program(args, kwargs, number)[0]

        return writing


def _check_different(words: np.ndarray) -> None:
    """Refuse two lanes with the same key, which would write to one run."""
    found, counts = np.unique(words, axis=0, return_counts=True)
    if (counts > 1).any():
        name = seeds.run_name(found[np.argmax(counts)].tolist())
        raise ArgumentError(
            f"The same key is there more than once: two lanes would write to the run {name!r}. "
            "Hint: give each lane a key of its own, as with jax.random.split(key, n)."
        )
