"""Rules for loops: ``scan`` stacks the logs of its iterations; ``while_loop`` carries states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core.primitives import scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.gather import gather
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.registry import raise_unknown_length, register_rule
from sawlog.jax._core.stream import Streams, over_loop


@register_rule(scan_p)
def scan(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Return the logs of each iteration as further stacked outputs.

    body: [consts, carry, x] -> [carry, y] becomes

    [hoisted, consts, state, carry, x] -> [state, carry, y, logs]
    """
    loop = _compat.Scan.read(eqn.params)
    new = interpreter.rewrite(loop.body)
    hoisted, state = len(new.hoisted), new.carried
    inputs, outputs = len(new.closed.in_avals), len(new.closed.out_avals)
    first = hoisted + state + loop.consts
    body = _compat.reordered(
        new.closed,
        [
            *range(hoisted),
            *range(hoisted + state, first),
            *range(hoisted, hoisted + state),
            *range(first, inputs),
        ],
        [*range(outputs - state, outputs), *range(outputs - state)],
    )
    consts, carry, xs = loop.split(values)
    outs = loop.bind([*new.hoisted, *consts], [*interpreter.state(new.names), *carry], xs, body)
    outs, streams = interpreter.split(new, [*outs[state:], *outs[:state]])
    return outs, tuple(over_loop(s, reverse=loop.reverse) for s in streams)


@register_rule(while_p)
def while_loop(
    interpreter: Interpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Thread the handler's state through the carry; a loop of unknown length returns no streams.

    cond: [cond consts, carry] -> [again], body: [body consts, carry] -> [carry] become

    [cond consts, again, state, carry] -> [again],
    [consts of both, again, state, carry] -> [again, state, carry]

    The condition is evaluated, and logs, at the end of the body. Lanes of ``vmap`` may stop
    separately, see ``_by_lane``.
    """
    if interpreter.handler.surveys:
        return _survey_while(interpreter, eqn, values)
    loop = _compat.While.read(eqn.params)
    cond, body, conds = loop.cond, loop.body, loop.cond_consts
    names = interpreter.carried_by(interpreter.sites_in(eqn))
    tree: Any = jax.tree.structure([interpreter.handler.carry[name] for name in names])
    consts, carry = values[: loop.consts], values[loop.consts :]

    def condition(consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        return _without_streams(
            interpreter, eqn, interpreter.run(cond.jaxpr, cond.consts, [*consts, *carry])
        )[0]

    def step(*args: Any) -> list[Any]:
        consts, (_, *rest) = args[: loop.consts], args[loop.consts :]
        states = jax.tree.unflatten(tree, rest[: tree.num_leaves])
        with interpreter.carrying(names, states) as after:
            own = [*consts[conds:], *rest[tree.num_leaves :]]
            outs = _without_streams(interpreter, eqn, interpreter.run(body.jaxpr, body.consts, own))
            again = condition(consts[:conds], outs)
        return [again, *jax.tree.leaves(after()), *outs]

    init = [condition(consts[:conds], carry), *interpreter.state(names), *carry]
    apart = bool(loop.lanes) and tree.num_leaves > 0
    if apart:
        step = _by_lane(step, loop.consts, tree.num_leaves)
    outs = bind_while(eqn, consts, init, step, whole=apart)
    interpreter.update(names, tree, outs[: tree.num_leaves])
    return outs[tree.num_leaves :], ()


def bind_while(
    eqn: Any,
    consts: Sequence[Any],
    init: Sequence[Any],
    step: Callable[..., list[Any]],
    whole: bool = False,
) -> list[Any]:
    """Bind a loop like that of ``eqn`` that runs while the first value of its carry is true.

    ``step`` maps [consts, again, carry] to [again, carry]. Returns the carry without ``again``.
    If ``whole``, lanes do not stop separately: the loop runs while ``again`` is true in any.
    """
    avals = [_compat.typeof(value) for value in (*consts, *init)]
    body, hoisted = _compat.hoist_consts(_compat.trace_flat(step, avals, "body"))

    def runs(again: Any, *_: Any) -> list[Any]:
        return [jnp.any(again) if whole else again]

    cond = _compat.trace_flat(runs, avals[len(consts) :], "cond")
    params = _compat.While.read(eqn.params).changed(
        cond=cond, body=body, cond_consts=0, body_consts=len(hoisted) + len(consts)
    )
    return list(eqn.primitive.bind(*hoisted, *consts, *init, **params))[1:]


def _by_lane(step: Callable[..., list[Any]], consts: int, states: int) -> Callable[..., list[Any]]:
    """Let lanes stop separately in a loop that carries states: it runs while any lane runs.

    JAX would keep the first axes of every array for the lanes that stopped. Those of a state may be
    other lanes: those of a ``vmap`` around that the condition does not depend on, or more than the
    remainder of a ``lax.map`` with ``batch_size`` has. Logs of lanes that stopped are masked, so
    the states need no selection.
    """

    def whole(*args: Any) -> list[Any]:
        (running, *before), (again, *after) = args[consts:], step(*args)
        pairs = zip(after[states:], before[states:], strict=True)
        kept = [arrays.select(running, new, old) for new, old in pairs]
        return [again & running, *after[:states], *kept]

    return whole


def _survey_while(
    interpreter: Interpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Return the streams of one iteration, marked as those of a loop of unknown length."""
    loop = _compat.While.read(eqn.params)
    of_cond, of_body, carry = loop.split(values)
    _, first = interpreter.run(loop.cond.jaxpr, loop.cond.consts, [*of_cond, *carry])
    _, then = interpreter.run(loop.body.jaxpr, loop.body.consts, [*of_body, *carry])
    where = _compat.source_line(eqn)
    streams = [s.map(lambda x: x, unbounded=s.info.unbounded or where) for s in (*first, *then)]
    return interpreter.without_logs(eqn)(*values), gather(streams)


def _without_streams(
    interpreter: Interpreter, eqn: Any, result: tuple[list[Any], Streams]
) -> list[Any]:
    """Return the outputs; raise if there are streams, for which the loop has no room."""
    outs, streams = result
    if streams:
        where = _compat.source_line(eqn)
        raise_unknown_length(where, [stream.info.where for stream in streams])
    return outs
