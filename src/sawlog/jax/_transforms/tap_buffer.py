"""``tap(buffer=N)``: collect entries on the device and call back once for many of them.

The handler collects streams as ``spool`` does. A loop that is too long for the buffer is split into
pieces: an inner loop fills the buffer, and an outer loop calls back with it. A last call sends the
entries left at the end of the program. To keep the order, pending entries are sent before a loop
that calls back itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import scan_p, while_p

from sawlog._names import ByName
from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.gather import gather
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import has_site_effect
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams, from_site
from sawlog.jax._logdict.entries import LogdictPart
from sawlog.jax._rules import loops
from sawlog.jax._transforms.collectors import Limits, plan
from sawlog.jax._transforms.spool import Spool, part_of
from sawlog.jax._transforms.tap_payload import EntriesPayload


class BufferedTap(Handler):
    """The handler of ``tap(buffer=)``: collect ``buffer`` entries per name, then call back."""

    collects = True

    def __init__(self, chosen: Selection, send: Any, buffer: int, keep_logs: bool = False) -> None:
        super().__init__()
        self.keep_logs = keep_logs
        self.chosen = self.listens_for = chosen
        self.buffer = buffer
        self._send = send

    def wants(self, site: Site) -> bool:
        """Return whether any name of the site is selected."""
        return bool(self.chosen.keys(site))

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Collect the selected names."""
        del primitive, params
        return from_site(site, operands, self.chosen.keys(site))

    def flush(self, streams: Streams) -> None:
        """Call back with these streams."""
        self.flush_parts([part_of(stream) for stream in gather(streams)])

    def flush_parts(self, parts: Sequence[LogdictPart]) -> None:
        """Call back with the entries of these keys."""
        if not parts:
            return
        values = [(part.value, part.steps, part.mask) for part in parts]
        leaves, tree = jax.tree.flatten(values)
        slots = tuple(dataclasses.replace(p.slot, counted=False) for p in parts)
        kinds = tuple(map(_compat.key_kind, leaves))
        self._send(EntriesPayload(tree, slots, kinds), leaves)


class BufferedInterpreter(Interpreter):
    """The interpreter that splits long loops into pieces."""

    handler: BufferedTap

    def before(self, eqn: Any, pending: list[Any]) -> None:
        """Send pending entries before an equation that sends itself or would not fit."""
        if pending and (self._sends(eqn) or self._overflows(eqn, pending)):
            self.handler.flush(tuple(pending))
            pending.clear()

    def after(self, pending: list[Any]) -> None:
        """Send pending entries if they exceed the buffer."""
        if _entries(pending) > self.handler.buffer:
            self.handler.flush(tuple(pending))
            pending.clear()

    def rule(self, eqn: Any) -> Any:
        """Return the rule of an equation; loops that are too long for the buffer have their own."""
        if self._sends(eqn) and eqn.primitive is scan_p:
            return scan_in_pieces
        if self._sends(eqn) and eqn.primitive is while_p:
            return while_in_pieces
        return super().rule(eqn)

    def _sends(self, eqn: Any) -> bool:
        size = self.size_of(eqn)
        return size is None or size > self.handler.buffer

    def _overflows(self, eqn: Any, pending: list[Any]) -> bool:
        types = self._types(eqn)
        return bool(types) and _entries([*pending, *types]) > self.handler.buffer

    def size_of(self, eqn: Any) -> int | None:
        """Return how many entries of a name an equation can log; None if that is unknown."""
        types = self._types(eqn)
        if any(stream.info.unbounded for stream in types):
            return None
        return _entries(types)

    def _types(self, eqn: Any) -> Streams:
        """Return the types of the streams of an equation."""
        return survey(self.handler.chosen, eqn) if self.wanted_in(eqn) else ()


def survey(chosen: Selection, eqn: Any, avals: Sequence[Any] | None = None) -> Streams:
    """Return the types of the streams of one equation, for operands of the types ``avals``."""
    interpreter = Interpreter(Spool(chosen, surveys=True))
    found: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        _, streams = interpreter.equation(eqn, list(values))
        leaves, tree = jax.tree.flatten(streams)
        found.append(tree)
        return leaves

    avals = [var.aval for var in eqn.invars] if avals is None else avals
    closed = _compat.trace_flat(flat, avals, "survey")
    return jax.tree.unflatten(found[0], closed.out_avals)


def _entries(streams: Sequence[Any]) -> int:
    """Return the largest number of entries of any name."""
    totals: dict[str, int] = {}
    for stream in streams:
        totals[stream.info.key] = totals.get(stream.info.key, 0) + stream.size
    return max(totals.values(), default=0)


def scan_in_pieces(
    interpreter: BufferedInterpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Run a scan as a scan over pieces, followed by the remaining steps."""
    loop, handler = _compat.Scan.read(eqn.params), interpreter.handler
    body, reverse = loop.body, loop.reverse
    per_step = max(1, _entries(_survey_body(handler.chosen, body)))
    piece = max(1, handler.buffer // per_step)
    if per_step > handler.buffer or _is_unbounded(handler.chosen, body):
        piece = 1
    whole, rest = divmod(loop.length, piece)
    consts, init, xs = loop.split(values)
    head, tail = _split_steps(xs, rest, whole * piece, reverse)

    def run(carry: Sequence[Any], xs: Sequence[Any], length: int) -> tuple[list[Any], list[Any]]:
        short = _compat.shortened_scan(eqn, length)
        outs, streams = loops.scan(interpreter, short, [*consts, *carry, *xs])
        pending.extend(streams)
        return outs[: loop.carry], outs[loop.carry :]

    pending: list[Any] = []

    def one_piece(carry: Any, xs: Any) -> Any:
        carry, ys = run(carry, xs, piece)
        handler.flush(tuple(pending))
        pending.clear()
        return carry, ys

    chunks = [x.reshape((whole, piece, *x.shape[1:])) for x in tail]
    carry, ys = lax.scan(one_piece, init, chunks, whole, reverse=reverse)
    ys = [y.reshape((whole * piece, *y.shape[2:])) for y in ys]
    if not rest:
        return [*carry, *ys], ()
    carry, more = run(carry, head, rest)
    pairs = zip(more, ys, strict=True) if reverse else zip(ys, more, strict=True)
    return [*carry, *(arrays.concatenate(pair) for pair in pairs)], tuple(pending)


def _survey_body(chosen: Selection, body: Any) -> Streams:
    return Interpreter(Spool(chosen, surveys=True)).trace(body).stream_types


def _is_unbounded(chosen: Selection, body: Any) -> bool:
    return any(stream.info.unbounded for stream in _survey_body(chosen, body))


def _split_steps(
    xs: Sequence[Any], rest: int, whole: int, reverse: bool
) -> tuple[list[Any], list[Any]]:
    """Split off the remaining steps, which run last, from those that fill whole pieces."""
    if reverse:
        return [x[:rest] for x in xs], [x[rest:] for x in xs]
    return [x[whole:] for x in xs], [x[:whole] for x in xs]


def while_in_pieces(
    interpreter: BufferedInterpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Run a while loop as an outer loop around one that stops when the buffer is full.

    A loop whose condition logs sends after every iteration, because splitting it would evaluate the
    condition once more for each piece.
    """
    loop, handler = _compat.While.read(eqn.params), interpreter.handler
    cond, body, conds, bodies = loop.cond, loop.body, loop.cond_consts, loop.body_consts
    types = _survey_body(handler.chosen, body)
    per_turn = _entries(types)
    in_condition = bool(_survey_body(handler.chosen, cond)) or (
        handler.keep_logs and has_site_effect(cond.effects)
    )
    if in_condition or per_turn > handler.buffer or any(s.info.unbounded for s in types):
        return _while_turn_by_turn(interpreter, eqn, values)
    turns = max(1, handler.buffer // per_turn)
    limits = Limits(capacity=ByName(turns * per_turn))
    consts, carry = values[: conds + bodies], values[conds + bodies :]

    def again(consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        return jaxpr_as_fun(cond)(*consts[:conds], *carry)[0]

    def short_cond(*args: Any) -> list[Any]:
        turn, *rest = args[conds:]
        return [again(args[:conds], rest) & (turn < turns)]

    def short_body(*args: Any) -> list[Any]:
        turn, *rest = args[bodies:]
        return [turn + 1, *jaxpr_as_fun(body)(*args[:bodies], *rest)]

    counter = arrays.with_dtype(cond.out_avals[0], jnp.int32)
    short = eqn.replace(
        params=loop.changed(
            cond=_with_counter(short_cond, cond, conds, counter),
            body=_with_counter(short_body, body, bodies, counter),
        )
    )

    def piece(*args: Any) -> list[Any]:
        consts, (_, *carry) = args[: conds + bodies], args[conds + bodies :]
        operands = [*consts, arrays.zeros(counter), *carry]
        found = survey(handler.chosen, short, [_compat.typeof(x) for x in operands])
        collectors = plan(found, lambda stream: None, limits)
        collecting = Spool(handler.chosen, handler.keep_logs, collectors)
        outs, _ = loops.while_loop(Interpreter(collecting), short, operands)
        handler.flush_parts(list(collecting.collected().values()))
        return [again(consts, outs[1:]), *outs[1:]]

    return loops.bind_while(eqn, consts, [again(consts, carry), *carry], piece), ()


def _with_counter(fun: Any, inner: Any, consts: int, counter: Any) -> Any:
    avals = [*inner.in_avals[:consts], counter, *inner.in_avals[consts:]]
    avals = [_compat.as_aval(aval) for aval in avals]
    return _compat.trace_flat(fun, avals, "a piece of a loop")


def _while_turn_by_turn(
    interpreter: BufferedInterpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Send after each evaluation of the condition and of the body."""
    loop = _compat.While.read(eqn.params)
    conds = loop.cond_consts
    consts, carry = values[: loop.consts], values[loop.consts :]

    def run(inner: Any, args: Sequence[Any]) -> list[Any]:
        outs, streams = interpreter.run(inner.jaxpr, inner.consts, args)
        interpreter.handler.flush(streams)
        return outs

    def again(consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        return run(loop.cond, [*consts[:conds], *carry])[0]

    def turn(*args: Any) -> list[Any]:
        consts, (_, *carry) = args[: loop.consts], args[loop.consts :]
        outs = run(loop.body, [*consts[conds:], *carry])
        return [again(consts, outs), *outs]

    return loops.bind_while(eqn, consts, [again(consts, carry), *carry], turn), ()
