"""``spool``: return the logs of a function together with its output."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sawlog.errors import ArgumentError
from sawlog.jax._entries import Part, Slot
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._logdict import logdict
from sawlog.jax._primitive import is_listening, log_p
from sawlog.jax._reductions import check_mode
from sawlog.jax._select import Selection, selection
from sawlog.jax._site import Site
from sawlog.jax._stream import Stream, Streams, from_site
from sawlog.jax._wrap import Program, check_callable, program_for


class Spool:
    """The handler that collects."""

    collects = True
    primitives = (log_p,)

    def __init__(self, chosen: Selection, keep_logs: bool) -> None:
        self._chosen = chosen
        self._keep_logs = keep_logs

    def wants(self, site: Site) -> bool:
        """Whether any of its names was chosen."""
        return self._keep_logs or bool(self._chosen.keys(site))

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Start a stream for each chosen name, and leave the log for others if so asked."""
        if self._keep_logs and is_listening():
            primitive.bind(*operands, site=site, **params)
        return from_site(site, operands, self._chosen.keys(site))


def spool(
    fun: Callable[..., Any],
    argnames: Any = None,
    tags: Any = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
) -> Callable[..., tuple[Any, logdict]]:
    """Make a function that returns ``(output, logs)``.

    Args:
        fun: the function; it may be jitted, and may use any transformation of JAX inside.
        argnames: take only these names (one string is one name).
        tags: take only logs with one of these tags.
        keep_logs: leave the logs visible to transformations further out.
        interval: keep every n-th entry of each key.
        reduce: reduce the entries of each key: ``"mean"``, ``"last"``, ... or a dict by key.
        prefix: put this in front of every key.

    Returns:
        A function with the arguments of ``fun``. Like ``jax.jit`` it traces each call signature
        once. See :class:`sawlog.logdict` for what comes back.

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

    Raises:
        LogMismatchError: one name is logged in ways that cannot be put together.
        UnsupportedLoopError: a log stands in a loop of unknown length.
        UnsupportedPrimitiveError: a log stands inside a primitive without a rule.
        ArgumentError: an option is of the wrong kind.
    """
    check_callable(fun, "spool")
    if interval is not None and (not isinstance(interval, int) or interval < 1):
        raise ArgumentError(f"interval must be a whole number from 1 on, got {interval!r}.")
    if reduce is not None:
        check_mode(reduce)
    chosen = selection(argnames, tags)
    modes = tuple(sorted(reduce.items())) if isinstance(reduce, Mapping) else reduce
    options = (spool, chosen, keep_logs, interval, modes, prefix)

    def evaluate(closed: Any, values: list[Any], _: Any) -> tuple[list[Any], logdict]:
        walk = Interpreter(Spool(chosen, keep_logs))
        outs, streams = walk.run(closed.jaxpr, closed.consts, values)
        logs = logdict._of(map(_part, streams))
        logs = logs if interval is None else logs.slice[::interval]
        logs = logs if reduce is None else logs.reduce(reduce)
        return outs, logs.prefix(prefix) if prefix else logs

    program = program_for(fun, options, lambda: Program(fun, evaluate))

    @functools.wraps(fun)
    def spooled(*args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        out, logs = program(args, kwargs)
        if logs._pending:
            logs._seen()
        return out, logs

    return spooled


def _part(stream: Stream) -> Part:
    info = stream.info
    slot = Slot(
        key=info.key,
        steps=info.steps,
        stacked=info.stacked,
        ndim=stream.leaves[0].ndim,
        batch=info.batch,
        masked=stream.mask is not None,
    )
    return Part(jax.tree.unflatten(info.tree, stream.leaves), stream.steps, stream.mask, slot)
