"""``tap``: call a function on the host for every log, while the program runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir

from sawlog.errors import LogPlacementError
from sawlog.jax import _compat
from sawlog.jax._core.functions import check_callable
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import tap_effect, tap_p
from sawlog.jax._core.program import Program, program_for
from sawlog.jax._core.select import Selection, check_prefix, selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.static_arguments import jit_options
from sawlog.jax._core.stream import Streams
from sawlog.jax._core.transformed import Transformed
from sawlog.jax._core.unmatched import Unmatched
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.tap_buffer import BufferedInterpreter, BufferedTap
from sawlog.jax._transforms.tap_host import (
    CallbackReceiver,
    Receiver,
    deliver_by_number,
    registered,
    to_host,
)
from sawlog.jax._transforms.tap_payload import (
    EntriesPayload,
    LogdictPayload,
    LogPayload,
    Send,
    send_site,
)
from sawlog.jax._transforms.tap_sampling import (
    Sampling,
    read_sampling,
    run_sampled,
)


class Tap(Handler):
    """The handler of ``tap``: replace each log by a host call, bound by ``send``."""

    def __init__(self, chosen: Selection, send: Send, keep_logs: bool = False) -> None:
        super().__init__()
        self._chosen = self.listens_for = chosen
        self.keep_logs = keep_logs
        self._send = send

    def wants(self, site: Site) -> bool:
        """Return whether any name of the site is selected."""
        return bool(self._chosen.keys(site))

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Bind a host call."""
        del primitive, params
        keys = self._chosen.keys(site)
        if keys:
            send_site(self._send, site, operands, keys)
        return ()


def _lower(ctx: Any, *args: Any, gated: bool = False, **params: Any) -> Any:
    if gated:
        return mlir.lower_fun(_call_if_due, multiple_results=True)(ctx, *args, **params)

    split = _compat.is_split_over_processes(ctx)

    def call(*arrays: Any) -> tuple[()]:
        _run(*arrays, split=split, **params)
        return ()

    try:
        return _compat.lower_to_ordered_callback(ctx, tap_effect, call, args)
    except NotImplementedError as error:  # in a shard_map over some axes of the mesh
        site = params["site"]
        raise LogPlacementError(
            f"The log of {', '.join(map(repr, site.keys))} at {site.where} cannot be sent while "
            f"the program runs, because JAX refuses: {error} Hint: sawlog.spool returns it; or "
            "leave axis_names of shard_map out, so that all axes of the mesh are manual."
        ) from error


def _call_if_due(*args: Any, receiver: Receiver | None, **params: Any) -> list[Any]:
    """Call the host only if the mask of any lane is true."""
    call = functools.partial(tap_p.bind, *args, receiver=receiver, **params)
    return list(lax.cond(jnp.any(args[-1]), call, list))


@tap_p.def_impl
def _run(
    *arrays: Any,
    site: Any,
    receiver: Receiver | None,
    gated: bool = False,
    split: bool = False,
    **params: Any,
) -> list[Any]:
    del gated  # delivery skips masked lanes
    call: Any = site if isinstance(site, EntriesPayload) else LogPayload(site, **params)
    if split:
        call = dataclasses.replace(call, split=True)
    if receiver is None:
        deliver_by_number(call, arrays)
    else:
        receiver.deliver(call, [to_host(array) for array in arrays])
    return []


_compat.define_lowering(tap_p, _lower, cacheable=False)
_compat.needs_devices_to_lower(tap_p)


def show(logs: logdict) -> None:
    """Print one log call in one line."""
    from sawlog.jax._logdict.display import line

    print(line(logs), flush=True)


def tap(
    fun: Callable[..., Any],
    callback: Callable[[logdict], Any] | None = None,
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
    """Transform a function to call ``callback(logs)`` on the host for every log, as it runs.

    ``logs`` is a :class:`sawlog.logdict` of numpy arrays with the names of one call of ``log``. On
    one device the calls are made in program order. Without a callback the logs are printed. The
    output is that of ``fun``. ``argnames``, ``tags``, ``prefix``, ``keep_logs``, ``static_argnums``
    and ``static_argnames`` are those of :func:`sawlog.spool`.

    With ``buffer=n``, up to ``n`` entries of each name are collected on the device and sent
    together: the callback gets a logdict whose values have a leading entry axis. All entries are
    sent, and the order of each name is kept. This is much faster, since a host call costs about 100
    microseconds. A log that is not reached takes up space in the buffer, so a call may bring fewer
    entries.

    With ``interval=n``, only every n-th entry of each name is sent, starting with the first; the
    others cost no host call. With ``reduce="mean"`` (or any other reduction of
    :func:`sawlog.spool`, or a dict of those by name) there is one call at the end, with the reduced
    value of each name. Names that are missing from the dict are sent as they are logged, unless the
    log has its own ``reduction``. If ``buffer=n`` is given too, every n entries that the interval
    selects are sent together, or reduced to one without an entry axis. Each name must then be
    logged with one type everywhere, as for :func:`sawlog.spool`.

    Called outside any transformation, the tapped function returns after every callback has run, and
    raises an exception of a callback, with a note that names the log. Inside ``jit``, JAX raises
    the exception where the program waits for the result.

    Raises:
        ArgumentError: an option has an invalid value.

    >>> import jax, sawlog
    >>> def f(n):
    ...     def body(i, x):
    ...         sawlog.log({"x": x}, step=i)
    ...         return 2 * x
    ...     return jax.lax.fori_loop(0, 3, body, n)
    >>> y = sawlog.tap(f)(5)
    [step 0] x=5
    [step 1] x=10
    [step 2] x=20
    """
    check_callable(fun, "tap")
    check_prefix(prefix)
    if callback is not None:
        check_callable(callback, "callback")
    sampling = read_sampling(interval, reduce, buffer)
    chosen = selection(argnames, tags)
    receive = show if callback is None else callback

    # Called outside a transformation, the program gets the number of its receiver as an
    # argument, so that one compiled program serves any callback. Inside one, the receiver is part
    # of its program.
    static = jit_options(static_argnums, static_argnames)
    alone = program_for(
        fun,
        (tap, chosen, sampling, tuple(static.items())),
        lambda: Program(fun, evaluator(chosen, sampling, send_to), hidden=1, options=static),
    )

    def to_new_receiver() -> Send:
        return send_to(CallbackReceiver(receive, prefix, hold_errors=False))

    inside = Program(fun, evaluator(chosen, sampling, to_new_receiver, keep_logs), options=static)

    def tapped(*args: Any, **kwargs: Any) -> Any:
        if not _compat.not_tracing():
            _compat.prepare_order(tap_effect)
            return inside(args, kwargs)[0]
        receiver = CallbackReceiver(receive, prefix, hold_errors=True)
        with registered(receiver) as number:
            out = alone(args, kwargs, number)[0]
            jax.effects_barrier()
        receiver.raise_held()
        return out

    return Transformed(fun, tapped, inside)


def evaluator(
    chosen: Selection, sampling: Sampling, sender: Callable[..., Send], keep_logs: bool = False
) -> Any:
    """Return the evaluation of a tapped program.

    ``sender(*hidden)`` returns the function that sends logs, given the hidden arguments of the
    program: the number of a receiver, or nothing.
    """
    unmatched = Unmatched()

    def evaluate(closed: Any, values: list[Any], hidden: Sequence[Any]) -> tuple[list[Any], None]:
        send = sender(*hidden)
        unmatched.warn(closed, chosen, **sampling.by_name())
        if not sampling.is_plain:
            return run_sampled(closed, values, chosen, sampling, send, keep_logs), None
        if sampling.buffer is None:
            interpreter = Interpreter(Tap(chosen, send, keep_logs))
            return interpreter.run(closed.jaxpr, closed.consts, values)[0], None
        buffered = BufferedTap(chosen, send, sampling.buffer, keep_logs)
        outs, left = BufferedInterpreter(buffered).run(closed.jaxpr, closed.consts, values)
        buffered.flush(left)
        return outs, None

    return evaluate


def send_to(receiver: Any) -> Send:
    """Return a function that binds host calls for a :class:`CallbackReceiver`, or for a number.

    A number, which may be traced, is one more operand, in front of the mask.
    """

    def send(site: Any, operands: Sequence[Any], **params: Any) -> None:
        if isinstance(receiver, CallbackReceiver):
            tap_p.bind(*operands, site=site, receiver=receiver, **params)
            return
        place = len(operands) - int(site.masked)
        operands = [*operands[:place], receiver, *operands[place:]]
        tap_p.bind(*operands, site=site, receiver=None, **params)

    return send


# -- loggers: the number of a run in place of a callback ------------------------------------------


def tap_to_run(
    fun: Callable[..., Any],
    chosen: Selection,
    prefix: str,
    sampling: Sampling,
    static: dict[str, tuple],
    keep_logs: bool = False,
) -> Program:
    """Return the program of ``fun`` that sends its logs to a run, whose number it takes first."""
    send = functools.partial(_send_prefixed, prefix)
    evaluate = evaluator(chosen, sampling, send, keep_logs)
    options = (tap_to_run, chosen, prefix, sampling, tuple(static.items()), keep_logs)
    return program_for(fun, options, lambda: Program(fun, evaluate, hidden=1, options=static))


def _send_prefixed(prefix: str, number: Any) -> Send:
    """Return a function that sends to a run, with a prefix in front of every name."""
    plain = send_to(number)

    def send(site: Site | EntriesPayload, operands: Sequence[Any], **params: Any) -> None:
        if isinstance(site, EntriesPayload):
            slots = tuple(dataclasses.replace(s, key=prefix + s.key) for s in site.slots)
            site = dataclasses.replace(site, slots=slots)
        else:
            site = dataclasses.replace(site, keys=tuple(prefix + key for key in site.keys))
            params["keys"] = tuple(prefix + key for key in params["keys"])
        plain(site, operands, **params)

    return send if prefix else plain


def send_whole(logs: logdict, number: Any) -> None:
    """Write a logdict to the run with this number when the traced program gets here."""
    leaves, tree = jax.tree.flatten(logs)
    if leaves:
        kinds = tuple(map(_compat.key_kind, leaves))
        send_to(number)(LogdictPayload(tree, logs._layout.slots, kinds), leaves)
