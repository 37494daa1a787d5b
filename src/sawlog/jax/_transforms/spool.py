"""``spool``: return the logs of a function together with its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core.primitives import while_p

from sawlog._names import ByName
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.program import Program, program_for
from sawlog.jax._core.reductions import check_mode
from sawlog.jax._core.select import Selection, check_prefix, selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.static_arguments import jit_options
from sawlog.jax._core.stream import Stream, Streams, from_site, widened_site
from sawlog.jax._core.transformed import Transformed
from sawlog.jax._core.unmatched import Unmatched
from sawlog.jax._logdict.entries import LogdictPart, Slot, stack
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.collectors import Collector, Limits, plan, read_limits


class Spool(Handler):
    """The handler of ``spool``: collect logs in streams, or for some names in a collector."""

    collects = True

    def __init__(
        self,
        chosen: Selection,
        keep_logs: bool = False,
        collectors: Mapping[str, Collector] | None = None,
        surveys: bool = False,
    ) -> None:
        super().__init__()
        self._chosen = self.listens_for = chosen
        self.keep_logs = keep_logs
        self._collectors = dict(collectors or {})
        self.surveys = surveys
        self.carry = {key: each.start() for key, each in self._collectors.items()}

    def wants(self, site: Site) -> bool:
        """Return whether any name of the site is selected."""
        return bool(self._chosen.keys(site))

    def carried(self, site: Site) -> Sequence[str]:
        """Return the selected names that have a collector."""
        return [key for key in self._chosen.keys(site) if key in self._collectors]

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Collect the selected names."""
        del primitive, params
        streams = []
        for stream in from_site(site, operands, self._chosen.keys(site)):
            key = stream.info.key
            collector = self._collectors.get(key)
            if collector is None:
                streams.append(stream)
                continue
            wide, own = widened_site(site, operands, collector.like)
            if own is not operands:
                (stream,) = from_site(wide, own, (key,))
            self.carry[key] = collector.update(
                self.carry[key], stream.leaves, stream.steps, stream.mask, site.batch
            )
        return tuple(streams)

    def collected(self) -> dict[str, LogdictPart]:
        """Return the results of the collectors."""
        return {key: each.finish(self.carry[key]) for key, each in self._collectors.items()}


def spool(
    fun: Callable[..., Any],
    argnames: Any = None,
    tags: Any = None,
    keep_logs: bool = False,
    interval: Any = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    window: int | None = None,
    capacity: Any = None,
    keep: str = "first",
    static_argnums: Any = None,
    static_argnames: Any = None,
) -> Callable[..., tuple[Any, logdict]]:
    """Transform a function to return ``(output, logs)``.

    Args:
        fun: the function; it may be jitted, and may use any JAX transformation inside.
        argnames: collect only these names (one string is one name). Every option that takes a name
            also takes a pattern such as ``"train/*"``; a name or pattern that matches no log causes
            an :class:`~sawlog.errors.UnmatchedNameWarning`.
        tags: collect only logs with one of these tags.
        keep_logs: keep the logs visible to transformations around this one.
        interval: keep every n-th entry of each key; a number, or a dict of numbers by key.
        reduce: reduce the entries of each key inside the program: ``"mean"``, ``"last"``, ... a
            :class:`sawlog.Reduction`, or a dict of those by key. It takes precedence over the
            ``reduction`` of the log itself.
        prefix: a prefix for every key.
        window: keep the last n entries of each key; takes precedence over ``capacity``.
        capacity: the number of entries to keep of each key that is logged in a loop of unknown
            length; a number, or a dict by key, which applies to these keys in any loop.
        keep: with ``capacity``, keep the ``"first"`` or the ``"last"`` entries; ``logs.dropped``
            counts those that did not fit.
        static_argnums, static_argnames: the static arguments, as for ``jax.jit``; a jitted ``fun``
            keeps its own.

    Returns:
        A function with the arguments of ``fun``. Like ``jax.jit`` it traces each call signature
        once, and has ``lower``, ``trace`` and ``eval_shape``. The logs are a
        :class:`sawlog.logdict`.

    >>> import jax, jax.numpy as jnp, sawlog
    >>> def f(xs):
    ...     def body(total, x):
    ...         total += x
    ...         sawlog.log({"total": total})
    ...         return total, None
    ...     return jax.lax.scan(body, 0, xs)[0]
    >>> y, logs = sawlog.spool(f)(jnp.arange(4))
    >>> print(y, logs["total"])
    6 [0 1 3 6]
    >>> print(sawlog.spool(f, reduce="mean")(jnp.arange(4))[1]["total"])
    2.5

    Raises:
        LogMismatchError: a name is logged with different types, structures or step axes.
        UnsupportedLoopError: a log is in a loop of unknown length, without ``capacity``, ``window``
            or a reduction.
        UnsupportedPrimitiveError: a log is inside a primitive without a rule.
        ArgumentError: an option has an invalid value.
    """
    return _spool(
        fun,
        "spool",
        argnames,
        tags,
        keep_logs,
        interval,
        reduce,
        prefix,
        window,
        capacity,
        keep,
        static=jit_options(static_argnums, static_argnames),
    )


def logify(
    fun: Callable[..., Any], *, static_argnums: Any = None, static_argnames: Any = None
) -> Callable[..., tuple[Any, logdict]]:
    """Transform a function to return ``(output, logs)``, with one value for each name.

    A log is reduced by its own ``reduction``, as in ``log("loss", loss, reduction="mean")``, and
    otherwise replaces the previous one. ``logs.asdict()`` returns ``{name: {reduction: value}}``.
    The options are those of ``jax.jit``.

    >>> import jax, sawlog
    >>> @sawlog.logify
    ... def f(n):
    ...     def body(i, x):
    ...         sawlog.log("x", x)
    ...         sawlog.log("mean_x", x, reduction="mean")
    ...         return x + 1.0
    ...     return jax.lax.fori_loop(0, 3, body, n)
    >>> y, logs = f(4.0)
    >>> print(jax.tree.map(float, logs.asdict()))
    {'mean_x': {'mean': 5.0}, 'x': {'replace': 6.0}}
    """
    static = jit_options(static_argnums, static_argnames)
    return _spool(fun, "logify", default="replace", static=static)


def _spool(
    fun: Callable[..., Any],
    name: str,
    argnames: Any = None,
    tags: Any = None,
    keep_logs: bool = False,
    interval: Any = None,
    reduce: Any = None,
    prefix: str = "",
    window: int | None = None,
    capacity: Any = None,
    keep: str = "first",
    default: str | None = None,
    static: dict[str, tuple] | None = None,
) -> Callable[..., tuple[Any, logdict]]:
    check_callable(fun, name)
    check_prefix(prefix)
    if reduce is not None:
        check_mode(reduce, "reduce")
    limits = read_limits(interval, window, capacity, keep)
    chosen = selection(argnames, tags)
    modes = ByName.read(reduce)
    static = static or {}
    options = (spool, chosen, keep_logs, limits, modes, prefix, default, tuple(static.items()))

    def mode_of(stream: Stream) -> Any:
        return modes.of(stream.info.key) or stream.info.reduction or default

    unmatched = Unmatched()

    def evaluate(closed: Any, values: list[Any], _: Any) -> tuple[list[Any], logdict]:
        unmatched.warn(
            closed, chosen, reduce=modes, interval=limits.interval, capacity=limits.capacity
        )
        bounded = limits != Limits(keep=keep) or reduce is not None or default is not None
        types: Streams = ()
        if bounded or _has_bounds_of_its_own(closed, chosen):
            types = _survey(closed, chosen)
        collectors = plan(types, mode_of, limits)
        handler = Spool(chosen, keep_logs, collectors)
        outs, streams = Interpreter(handler).run(closed.jaxpr, closed.consts, values)
        parts = {stream.info.key: part_of(stream) for stream in streams} | handler.collected()
        if default is not None:  # logify
            appended = {s.info.key for s in streams if mode_of(s) == "append"}
            parts |= {key: _appended(parts[key]) for key in appended}
        logs = logdict._of(parts.values())
        if window is not None:  # reductions apply to the contents of the window
            logs = logs.reduce({s.info.key: mode_of(s) or "append" for s in types})
        return outs, logs.prefix(prefix) if prefix else logs

    program = program_for(fun, options, lambda: Program(fun, evaluate, options=static))
    return Transformed(fun, program.as_function(_settled), program)


def _settled(logs: logdict) -> logdict:
    """Make logs drop entries that were not logged on first access, without waiting now."""
    if logs._layout.masked and not logs._pending:  # no program was compiled around them
        logs._settle_later()
    return logs


def _survey(closed: Any, chosen: Selection) -> Streams:
    """Return the types of all streams of a program."""
    return Interpreter(Spool(chosen, surveys=True)).trace(closed).stream_types


def _has_bounds_of_its_own(closed: Any, chosen: Selection) -> bool:
    """Return whether a log has a reduction, or is in a loop of unknown length."""
    interpreter = Interpreter(Spool(chosen))

    def found(jaxpr: Any) -> bool:
        return any(
            (eqn.primitive is while_p or any(site.reduction for site in wanted))
            or any(found(getattr(inner, "jaxpr", inner)) for inner in interpreter.inner(eqn))
            for eqn in jaxpr.eqns
            if (wanted := interpreter.wanted_in(eqn))
        )

    return found(closed.jaxpr)


def _appended(part: LogdictPart) -> LogdictPart:
    """Add the entry axis to a key that a log asked ``logify`` to append."""
    part = stack(part)
    return dataclasses.replace(part, slot=dataclasses.replace(part.slot, reduction="append"))


def part_of(stream: Stream) -> LogdictPart:
    """Convert a stream to a key of a logdict."""
    info = stream.info
    slot = Slot(
        key=info.key,
        steps=info.axes,
        stacked=info.stacked,
        ndim=stream.leaves[0].ndim,
        batch=info.batch,
        masked=stream.mask is not None,
    )
    return LogdictPart(
        jax.tree.unflatten(info.tree, stream.leaves), stream.written(), stream.mask, slot
    )
